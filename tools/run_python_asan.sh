#!/usr/bin/env bash
# Runs Python tests of errors and lifetimes with engine and bindings under AddressSanitizer and
# UBSan: what a rank's death leaves in flight must neither be read nor written afterwards. The
# interpreter itself is not instrumented, so the runtime is preloaded, and leaks are not looked for
# (CPython keeps memory until the end on purpose; the C++ tests look for leaks).
set -euo pipefail
cd "$(dirname "$0")/.."

home=.venv-asan
if [[ ! -e $home/.ready ]]; then
  "${PYTHON:-python3}" -m venv "$home"
  "$home/bin/pip" install --quiet --disable-pip-version-check \
    numpy ml_dtypes 'pybind11>=3.0,<4' 'pytest>=9,<10' 'pytest-timeout>=2.3,<3' 'setuptools>=77'
  touch "$home/.ready"
fi
# The engine as the C++ tests have it under these sanitizers, with bindings.
cmake --preset asan -DLIGHTCC_PYTHON=ON -DPython_EXECUTABLE="$PWD/$home/bin/python" \
  -Dpybind11_DIR="$("$home/bin/python" -m pybind11 --cmakedir)" >/dev/null
LIGHTCC_BUILD_DIR=$PWD/build/asan LIGHTCC_HARP=0 "$home/bin/pip" install --quiet \
  --disable-pip-version-check --no-build-isolation --force-reinstall --no-deps .

mkdir -p build/elsewhere build/reports
cd build/elsewhere
# libstdc++ too: the sanitizer looks for its exception functions when the program starts.
LD_PRELOAD="$(clang++-19 -print-file-name=libclang_rt.asan-$(uname -m).so) $(gcc -print-file-name=libstdc++.so.6)"
export LD_PRELOAD
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export HOROVOD_START_TIMEOUT=120
exec "../../$home/bin/python" -m pytest -q -c ../../pyproject.toml --rootdir ../.. \
  --junitxml ../reports/python-asan.xml -m "not netns and not slow" "$@" \
  ../../tests/python/parallel/test_agreement.py ../../tests/python/parallel/test_failures.py \
  ../../tests/python/parallel/test_fork.py
