#!/usr/bin/env bash
# Runs pytest with several processes, and what failed there once more, alone.
# Usage: run_python_tests.sh PYTEST WORKERS REPORT.xml [pytest options]
#
# Ranks of a dozen tests share the cores, so a test can fail because it had none of them for seconds.
# REPORT-alone.xml tells check_skips.py what passed alone, which names it. The repeat ends with the
# third failure: what did not run again has failed.
set -uo pipefail
pytest=$1 workers=$2 report=$3
shift 3
alone="${report%.xml}-alone.xml"

unset PYTHONDONTWRITEBYTECODE  # To rewrite all tests anew takes each process 10 s.
rm -f "$report" "$alone"
"$pytest" -n "$workers" --junitxml "$report" "$@"
status=$?
[[ $status == 1 ]] || exit "$status"  # 1: tests failed. All else is an error of another kind.
echo "=== what failed beside others, once more, alone"
"$pytest" -n 0 --maxfail 3 --last-failed --last-failed-no-failures none --junitxml "$alone" "$@"
