#!/usr/bin/env bash
# Runs pytest with several processes, and up to three tests that failed there once more, alone.
# Usage: run_python_tests.sh PYTEST WORKERS REPORT [pytest options]
#
# Ranks of a dozen tests share the cores, so a test can fail because it had none of them for seconds.
# What passes alone is listed, and REPORT-alone.xml tells check_skips.py. What fails alone has failed.
set -uo pipefail
pytest=$1 workers=$2 report=$3
shift 3
alone="${report%.xml}-alone.xml"
most=3

rm -f "$report" "$alone"
"$pytest" -n "$workers" --junitxml "$report" "$@"
status=$?
[[ $status == 1 ]] || exit "$status"  # 1: tests failed. All else is an error of another kind.
failed=$(python3 -c '
import sys, xml.etree.ElementTree as ET
cases = ET.parse(sys.argv[1]).iter("testcase")
print(sum(any(case.find(tag) is not None for tag in ("failure", "error")) for case in cases))
' "$report")
if ((failed == 0 || failed > most)); then
  exit "$status"
fi
echo "=== $failed failed beside others: once more, alone"
"$pytest" -n 0 --last-failed --last-failed-no-failures none --junitxml "$alone" "$@"
