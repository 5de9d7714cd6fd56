#!/usr/bin/env bash
# Builds one CMake preset and runs its C++ tests. Usage: run_cpp_tests.sh PRESET[-rest] [ctest options]
#
# PRESET-rest leaves out what passed in the last run of PRESET, and has a report of its own.
# The report is build/reports/PRESET.xml.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1%-rest}
report="$PWD/build/reports/$1.xml"
if [[ $1 == *-rest ]]; then
  set -- "$1" --exclude-regex "$(python3 tools/passed_tests.py "build/reports/$preset.xml")"
fi
shift
jobs=${JOBS:-$(nproc)}

mkdir -p build/reports
rm -f "$report"
cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "$jobs"
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$jobs" \
  --output-junit "$report" --test-output-size-passed 1048576 "$@"
