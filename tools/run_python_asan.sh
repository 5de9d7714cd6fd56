#!/usr/bin/env bash
# Runs Python tests of errors and lifetimes with engine and bindings under AddressSanitizer and
# UBSan: what a rank's death leaves in flight must neither be read nor written afterwards. The
# interpreter itself is not instrumented, so the runtime is preloaded, and leaks are not looked for
# (CPython keeps memory until the end on purpose; the C++ tests look for leaks).
# PYTHON: the interpreter, of an environment with what tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

# The engine as the C++ tests have it under these sanitizers, with bindings, before the installed one.
site=$PWD/build/asan/site
cmake --preset asan -DLIGHTCC_PYTHON=ON -DPython_EXECUTABLE="$PYTHON" \
  -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" >/dev/null
rm -rf "$site"
LIGHTCC_BUILD_DIR=$PWD/build/asan LIGHTCC_HARP=0 "$PYTHON" -m pip install --quiet \
  --disable-pip-version-check --no-build-isolation --no-deps --target "$site" .
export PYTHONPATH=$site

mkdir -p build/elsewhere build/reports
cd build/elsewhere
# libstdc++ too: the sanitizer looks for its exception functions when the program starts.
LD_PRELOAD="$(clang++-19 -print-file-name=libclang_rt.asan-$(uname -m).so) $(gcc -print-file-name=libstdc++.so.6)"
export LD_PRELOAD
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export HOROVOD_START_TIMEOUT=120
exec "$PYTHON" -m pytest -q -c ../../pyproject.toml --rootdir ../.. \
  --junitxml ../reports/python-asan.xml -m "not netns and not slow" "$@" \
  ../../tests/python/parallel/test_agreement.py ../../tests/python/parallel/test_failures.py \
  ../../tests/python/parallel/test_fork.py
