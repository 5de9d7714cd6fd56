#!/usr/bin/env bash
# HARP beside one connection of kernel TCP on a link of 1 Gb/s, between two network namespaces: rate
# and queue are those of `tc tbf`. Needs root, iproute2 and iperf3. It prints a table, and asserts
# nothing. Both ends have the HARP_COMPETE of the row.
# Usage: share_netns.sh HARP_PERF PLUGIN_SO
#
# QUEUES_MS="1 10 50", CONTROLS="alone cubic bbr", COMPETE="0 1" and SECONDS_EACH=8 may be set.
set -euo pipefail
perf=$(realpath "$1") plugin=$(realpath "$2")
source "$(dirname "$0")/../../tests/two_hosts.sh"
make_hosts 10.93.0
export HARP_PROFILE=none HARP_IFNAME==harp0
seconds=${SECONDS_EACH:-8}
available=$(sysctl -n net.ipv4.tcp_available_congestion_control)

echo "| beside | queue ms | HARP_COMPETE | HARP Gb/s | TCP Gb/s |"
echo "|---|---|---|---|---|"
for control in ${CONTROLS:-alone cubic bbr}; do
  if [[ $control != alone && " $available " != *" $control "* ]]; then
    echo "| $control | | | | this kernel has no $control |"
    continue
  fi
  for queue in ${QUEUES_MS:-1 10 50}; do
    for HARP_COMPETE in ${COMPETE:-0 1}; do
      export HARP_COMPETE
      ip netns exec "$a" tc qdisc replace dev harp0 root tbf rate 1gbit burst 64kb latency "${queue}ms"
      tcp=-
      if [[ $control != alone ]]; then
        ip netns exec "$b" iperf3 -s -1 >/dev/null 2>&1 &
        sleep 0.5
        ip netns exec "$a" iperf3 -c 10.93.0.2 -C "$control" -t $((seconds + 1)) -O 2 -J >"$folder/tcp" 2>&1 &
        iperf=$!
        sleep 2
      fi
      ip netns exec "$b" "$perf" --listen 10.93.0.2:7000 >/dev/null 2>&1 &
      listen=$!
      ip netns exec "$a" timeout 60 "$perf" --connect 10.93.0.2:7000 --via "$plugin" --sizes 512k \
        --seconds "$seconds" --rounds 1 --window 16 >"$folder/harp" 2>&1 || cat "$folder/harp"
      harp=$(awk -F'|' '/524288/ { gsub(/ /, "", $4); print $4; exit }' "$folder/harp")
      kill "$listen" 2>/dev/null || true
      if [[ $control != alone ]]; then
        wait "$iperf" || true
        tcp=$(python3 -c 'import json, sys
print("%.2f" % (json.load(open(sys.argv[1]))["end"]["sum_received"]["bits_per_second"] / 1e9))' "$folder/tcp")
      fi
      wait 2>/dev/null || true
      echo "| $control | $queue | $HARP_COMPETE | $harp | $tcp |"
    done
  done
done
