#!/usr/bin/env bash
# Runs net-conform on one mutant. Usage: check_mutant.sh NET_CONFORM MUTANT_SO PLUGIN_SO NAME RULE TESTS
#
# The mutant NAME must be found: the program fails, and a line says that RULE does. TESTS are the
# cases to run (--tests). NAME "none" and RULE "none": every rule must hold.
set -uo pipefail
net_conform=$1 mutant=$2 plugin=$3 name=$4 rule=$5 tests=$6

arguments=(--plugin "$mutant" --abi 8 --timeout 5 --peer-timeout 3 --strict --handle-bytes 64)
if [[ $tests != all ]]; then
  arguments+=(--tests "$tests")
fi
if [[ $name == none ]]; then
  arguments+=(--timeout 60)
fi
output=$(MUTANT=$name MUTANT_OF=$plugin "$net_conform" "${arguments[@]}" 2>&1)
status=$?
echo "$output"
if [[ $name == none ]]; then
  exit "$status"
fi
if ((status == 0)); then
  echo "mutant $name was not found" >&2
  exit 1
fi
if ! grep -q "^FAIL  $rule\b" <<<"$output"; then
  echo "mutant $name was found, but not by $rule" >&2
  exit 1
fi
