#!/usr/bin/env bash
# Builds one CMake preset and runs its C++ tests. Usage: run_cpp_tests.sh PRESET[-rest] [ctest options]
#
# PRESET-rest leaves out what passed in the last run of PRESET, and has a report of its own.
# The report is build/reports/PRESET.xml. Few tests that failed (few_failures.py) run once more,
# alone, as a test may have had no core for seconds; PRESET-alone.xml tells check_skips.py. What a
# sanitizer finds counts at once.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1%-rest}
report="$PWD/build/reports/$1.xml"
if [[ $1 == *-rest ]]; then
  set -- "$1" --exclude-regex "$(python3 tools/passed_tests.py "build/reports/$preset.xml")"
fi
shift
jobs=${JOBS:-$(nproc)}
tests_at_once=$((2 * jobs))  # Half of them wait.

mkdir -p build/reports
alone="${report%.xml}-alone.xml"
rm -f "$report" "$alone"
cmake --preset "$preset"
needed=(all)
if [[ $preset == ?san ]]; then  # Only what the chosen tests need: compiling takes longer than running.
  ctest --test-dir "build/$preset" --show-only=json-v1 "$@" |
    python3 tools/choose_tests.py "build/$preset" "build/$preset/chosen"
  mapfile -t needed <"build/$preset/chosen"
  set -- "$@" --tests-regex "${needed[0]}"
  needed=("${needed[@]:1}")
  tests_at_once=$jobs  # They compute.
fi
cmake --build --preset "$preset" --parallel "$jobs" --target "${needed[@]}"
status=0
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error \
  --parallel "$tests_at_once" \
  --output-junit "$report" --test-output-size-passed 1048576 "$@" || status=$?
few=$(python3 tools/few_failures.py "$report")
if [[ $status == 0 || -z $few || $preset == ?san ]]; then
  exit "$status"
fi
echo "=== $few failed beside others: once more, alone"
ctest --test-dir "build/$preset" --rerun-failed --output-on-failure --output-junit "$alone"
