#!/usr/bin/env bash
# Runs pytest with several processes, and what failed there once more, alone, where that is little
# (few_failures.py).
# Usage: run_python_tests.sh PYTEST WORKERS REPORT [pytest options]
#
# Ranks of a dozen tests share the cores, so a test can fail because it had none of them for seconds.
# What passes alone is listed, and REPORT-alone.xml tells check_skips.py. What fails alone has failed.
set -uo pipefail
pytest=$1 workers=$2 report=$3
shift 3
alone="${report%.xml}-alone.xml"

rm -f "$report" "$alone"
"$pytest" -n "$workers" --junitxml "$report" "$@"
status=$?
[[ $status == 1 ]] || exit "$status"  # 1: tests failed. All else is an error of another kind.
few=$(python3 "${BASH_SOURCE%/*}/few_failures.py" "$report")
if [[ -z $few ]]; then
  exit "$status"
fi
echo "=== $few failed beside others: once more, alone"
"$pytest" -n 0 --last-failed --last-failed-no-failures none --junitxml "$alone" "$@"
