#!/usr/bin/env bash
# Builds one CMake preset and runs its C++ tests. Usage: run_cpp_tests.sh PRESET [ctest options]
#
# Without GoogleTest only the replays of the fuzzers' corpora run, and the last line says so. The
# report is build/reports/PRESET.xml.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
jobs=${JOBS:-$(nproc)}
report="$PWD/build/reports/$preset.xml"

mkdir -p build/reports
rm -f "$report"
cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "$jobs"
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$jobs" \
  --output-junit "$report" --test-output-size-passed 1048576 "$@"
if grep -q '^GTest_DIR:PATH=.*NOTFOUND' "build/$preset/CMakeCache.txt"; then
  echo "NOTE: GoogleTest was not found, so the C++ unit tests were NOT built and NOT run." >&2
  echo "NOTE: install it (Debian: libgtest-dev), or use 'make test-all', which does." >&2
fi
