#!/usr/bin/env bash
# harp-perf with real plugins over the loopback interface. Usage: check_harp_perf.sh HARP_PERF PLUGIN_SO...
set -euo pipefail
perf=$1
shift
export HARP_IFNAME=lo REFTCP_IFNAME=lo
out=$(mktemp)
trap 'rm -f "$out"; kill $(jobs -p) 2>/dev/null || true' EXIT
fail() {
  echo "$*; what it printed:" >&2
  cat "$out" >&2
  exit 1
}
# expect STATUS TEXT command...: exits with STATUS and prints TEXT.
expect() {
  local status=0 wanted=$1 text=$2
  shift 2
  timeout 60 "$@" >"$out" 2>&1 || status=$?
  [[ $status == "$wanted" ]] || fail "$* exited with $status, not $wanted"
  grep -qF -- "$text" "$out" || fail "$* did not print '$text'"
}

port=$((20000 + RANDOM % 10000))
vias=(--via tcp)
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

"$perf" --listen "127.0.0.1:$port" &
expect 0 "HARP_PATHS=1 HARP_PAYLOAD_CRC=1 $(basename "$1")" "$perf" --connect "127.0.0.1:$port" \
  --via "$1" --via "HARP_PATHS=1 HARP_PAYLOAD_CRC=1 $1" --sizes 4k --seconds 0.02 --rounds 1
wait %1 || fail "the listening end failed"

expect 2 "unknown option --frobnicate" "$perf" --connect "127.0.0.1:$port" --via tcp --frobnicate 1
expect 2 "wrong arguments" "$perf" --connect "127.0.0.1:$port"
expect 2 "'0': expected a number from 1" "$perf" --connect "127.0.0.1:$port" --via tcp --sizes 0
expect 2 "'soon': expected seconds" "$perf" --connect "127.0.0.1:$port" --via tcp --seconds soon
expect 1 "expected IPV4:PORT" "$perf" --listen nowhere
"$perf" --listen "127.0.0.1:$port" 2>/dev/null &
expect 1 "harp-perf: " "$perf" --connect "127.0.0.1:$port" --via "$out.so"
