#!/usr/bin/env bash
# What harp-cycles prints, whatever the figures: all stages, which with the rest make up the whole, and that
# what was moved was checked. Usage: check_harp_cycles.sh HARP_CYCLES
set -euo pipefail
cycles=$1
EXPECT_SECONDS=200
source "$(dirname "$0")/expect.sh"
trap 'rm -f "$out"' EXIT

expect 0 "0 were wrong" "$cycles" --part stages --ms 1 --repetitions 1
for mtu in "MTU 1500: cycles per packet of 1408 bytes" "MTU 8500: cycles per packet of 8384 bytes"; do
  [[ $(grep -cF "$mtu" "$out") == 1 ]] || fail "no table of $mtu"
done
while read -r side stages; do
  [[ $(grep -c "^| $side | [^*]" "$out") == $((2 * stages)) ]] || fail "not $stages stages of $side, twice"
done <<<"transmit 10
receive 8"
# Stages and rest add up to the whole, but for rounding: each is printed without decimals.
sum=$(awk -F'|' '
  /^\| (transmit|receive) \|/ {
    if ($3 ~ /beside it/) next
    gsub(/\*/, "")
    if ($3 ~ / turn $/ && $3 ~ /the /) {
      wholes++
      if ($4 - hot > 6 || hot - $4 > 6 || $5 - cold > 6 || cold - $5 > 6) { print "not a sum: " $0; exit 1 }
      if ($4 <= 0 || $5 <= 0) { print "nothing measured: " $0; exit 1 }
      hot = cold = 0
    } else { hot += $4; cold += $5 }
  }
  END { if (wholes != 4) { print wholes " wholes"; exit 1 } }' "$out") || fail "$sum"
[[ $(grep -cE '^\| (transmit|receive), (hot|cold) \|' "$out") == 8 ]] || fail "not 8 rates"
checked=$(sed -n 's/^\([0-9]*\) packets and messages were checked, 0 were wrong\.$/\1/p' "$out")
((checked > 100)) || fail "'$checked' were checked"

cores=$(nproc)
expect 0 "a cache line to and fro, ns" "$cycles" --part cores --repetitions 1
[[ $(grep -cE '^\| [0-9]+ and [0-9]+ \| [1-9][0-9]* \|$' "$out") == $((cores * (cores - 1) / 2)) ]] || fail "not every pair"

expect 2 "unknown option '--frobnicate'" "$cycles" --frobnicate 1
expect 2 "--part 'most': expected stages, cores or all" "$cycles" --part most
expect 2 "--mtu '1499': expected a number from 1500 to 9600" "$cycles" --mtu 1499
expect 2 "--ms '0': expected milliseconds above 0" "$cycles" --ms 0
expect 2 "--repetitions '': expected a number from 1" "$cycles" --repetitions
expect 2 "--mtu '': expected a number from 1500 to 9600" "$cycles" --mtu ,
expect 2 "unknown option '--engines'" "$cycles" --engines 2
