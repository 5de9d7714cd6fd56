#!/usr/bin/env bash
# Runs a command, and adds the seconds that it took to the table in build/reports/seconds.txt.
# Usage: timed.sh NAME COMMAND [argument...]
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
name=$1
shift
"$@"
status=$?
mkdir -p "$root/build/reports"
printf '%-28s %5d s%s\n' "$name" "$SECONDS" "$( ((status == 0)) || echo '  FAILED')" \
  >>"$root/build/reports/seconds.txt"
exit "$status"
