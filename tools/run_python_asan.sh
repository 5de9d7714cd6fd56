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
    numpy ml_dtypes 'pytest>=9,<10' 'pytest-timeout>=2.3,<3'
  touch "$home/.ready"
fi
flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1"
LIGHTCC_HARP=0 CC=gcc CXX=g++ CFLAGS=$flags CXXFLAGS=$flags LDFLAGS="-fsanitize=address,undefined" \
  "$home/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps .

mkdir -p build/elsewhere build/reports
cd build/elsewhere
# libstdc++ too: the sanitizer looks for its exception functions when the program starts.
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so) $(gcc -print-file-name=libstdc++.so.6)"
export LD_PRELOAD
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export HOROVOD_START_TIMEOUT=120
exec "../../$home/bin/python" -m pytest -q -c ../../pyproject.toml --rootdir ../.. \
  --junitxml ../reports/python-asan.xml -m "not netns and not slow" "$@" \
  ../../tests/python/parallel/test_agreement.py ../../tests/python/parallel/test_failures.py \
  ../../tests/python/parallel/test_fork.py
