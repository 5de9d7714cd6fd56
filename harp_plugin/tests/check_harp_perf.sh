#!/usr/bin/env bash
# harp-perf with real plugins over the loopback interface. Usage: check_harp_perf.sh HARP_PERF PLUGIN_SO...
set -euo pipefail
perf=$1
shift
export HARP_PROFILE=none HARP_IFNAME=lo REFTCP_IFNAME=lo
source "$(dirname "$0")/expect.sh"
profile=$out.conf
trap 'rm -f "$out" "$profile"; kill $(jobs -p) 2>/dev/null || true' EXIT

port=$((20000 + RANDOM % 10000))
vias=(--via tcp --via tcp-each-way)
for plugin in "$@"; do
  vias+=(--via "$plugin")
done
"$perf" --listen "127.0.0.1:$port" &
expect 0 "round trip of 1 bytes" "$perf" --connect "127.0.0.1:$port" "${vias[@]}" \
  --sizes 1,7,4k,100001 --seconds 0.02 --rounds 1 --window 3
wait %1 || fail "the listening end failed"
for plugin in "$@"; do
  [[ $(grep -c "$(basename "$plugin")" "$out") == 5 ]] || fail "rows of $plugin are missing"
done

[[ $(grep -c "| tcp |" "$out") == 5 && $(grep -c "| tcp-each-way |" "$out") == 5 ]] ||
  fail "rows of tcp are missing"

# More than sockets hold, both ways.
"$perf" --listen "127.0.0.1:$port" &
expect 0 "round trip of 16777216 bytes" "$perf" --connect "127.0.0.1:$port" "${vias[@]}" \
  --sizes 16m --seconds 0.01 --rounds 1 --window 1
wait %1 || fail "the listening end failed"

"$perf" --listen "127.0.0.1:$port" &
expect 0 "HARP_PATHS=1 HARP_PAYLOAD_CRC=1 $(basename "$1")" "$perf" --connect "127.0.0.1:$port" \
  --via "$1" --via "HARP_PATHS=1 HARP_PAYLOAD_CRC=1 $1" --sizes 4k --seconds 0.02 --rounds 1
wait %1 || fail "the listening end failed"

# What the plugin reads from a profile, of which the log tells.
printf '# lo\nHARP_IFNAME==lo\nHARP_PATHS=3\n' >"$profile"
with_profile=(env -u HARP_IFNAME NET_CONFORM_DEBUG=1 HARP_PROFILE="$profile")
"$perf" --listen "127.0.0.1:$port" &
expect 0 "profile $profile: 2 variable(s)" "${with_profile[@]}" "$perf" --connect "127.0.0.1:$port" \
  --via "$1" --sizes 4k --seconds 0.02 --rounds 1
wait %1 || fail "the listening end failed"
grep -qF "1 engine(s) and 3 paths on lo=127.0.0.1" "$out" || fail "the profile did not count"
echo HARP_MODE=fast >>"$profile"
"$perf" --listen "127.0.0.1:$port" 2>/dev/null &
expect 1 "$profile:4: HARP_MODE=fast: expected inline" "${with_profile[@]}" "$perf" \
  --connect "127.0.0.1:$port" --via "$1"
kill %1 2>/dev/null || true
wait %1 || true

expect 2 "unknown option --frobnicate" "$perf" --connect "127.0.0.1:$port" --via tcp --frobnicate 1
expect 2 "wrong arguments" "$perf" --connect "127.0.0.1:$port"
expect 2 "'0': expected a number from 1" "$perf" --connect "127.0.0.1:$port" --via tcp --sizes 0
expect 2 "'soon': expected seconds" "$perf" --connect "127.0.0.1:$port" --via tcp --seconds soon
expect 1 "expected IPV4:PORT" "$perf" --listen nowhere
"$perf" --listen "127.0.0.1:$port" 2>/dev/null &
expect 1 "harp-perf: " "$perf" --connect "127.0.0.1:$port" --via "$out.so"
