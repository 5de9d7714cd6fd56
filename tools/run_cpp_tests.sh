#!/usr/bin/env bash
# Builds one CMake preset and runs its C++ tests. Usage: run_cpp_tests.sh PRESET REPORT [ctest options]
#
# The report is build/reports/REPORT.xml. What failed runs once more, alone, as a test may have had no
# core for seconds; REPORT-alone.xml tells check_skips.py, which names it. The repeat ends with the
# first failure, and what a sanitizer finds counts at once.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 report="$PWD/build/reports/$2.xml"
shift 2
jobs=${JOBS:-$(nproc)}
tests_at_once=$((2 * jobs))             # Half of them wait.
[[ $preset != ?san ]] || tests_at_once=$jobs  # They compute.

mkdir -p build/reports
alone="${report%.xml}-alone.xml"
rm -f "$report" "$alone"
cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "$jobs"
status=0
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error \
  --parallel "$tests_at_once" \
  --output-junit "$report" --test-output-size-passed 1048576 "$@" || status=$?
if [[ $status == 0 || $preset == ?san ]]; then
  exit "$status"
fi
echo "=== what failed beside others, once more, alone"
ctest --test-dir "build/$preset" --rerun-failed --stop-on-failure --output-on-failure \
  --output-junit "$alone"
