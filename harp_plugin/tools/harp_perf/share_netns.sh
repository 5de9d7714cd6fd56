#!/usr/bin/env bash
# HARP beside one connection of kernel TCP on a link of 1 Gb/s, between two network namespaces. They
# are joined by a third, a switch, whose port to the receiver has the rate and the queue of a `tc
# tbf`: a queue of the sender's own would hold TCP back to a millisecond, as the kernel counts what a
# socket has there. Needs root, iproute2 and iperf3. It prints a table, and asserts no share.
# A row whose programs ended before it was measured says why, and the script then fails. Both ends
# have the HARP_COMPETE of the row.
# Usage: share_netns.sh HARP_PERF PLUGIN_SO
#
# Both go on all the time. After SETTLE seconds the bytes on the link are counted for SECONDS_EACH;
# what is not TCP's is HARP's, with all headers.
# QUEUES_MS="1 10 50", CONTROLS="alone cubic bbr", COMPETE="0 1", SETTLE=8 and SECONDS_EACH=10 may be
# set, and REST_US=30, which is harp-perf's --rest-us (0: it polls all the time). BUSY=1 runs an
# endless loop on each core besides, as important as harp-perf.
#
# Six things share few cores here: who has no core has no share, whatever the network does. All are
# put before other work, iperf3 before harp-perf, which polls, and the kernel's packets before both.
# Linux weighs nice values within a session only (sched_autogroup_enabled), so the script takes a
# session of its own and raises that.
set -euo pipefail
if [[ ${SHARE_NETNS_SESSION:-} != own ]]; then
  SHARE_NETNS_SESSION=own exec setsid --wait "$0" "$@"
fi
perf=$(realpath "$1") plugin=$(realpath "$2")
source "$(dirname "$0")/../../tests/two_hosts.sh"
rest=()
[[ ${REST_US:-30} == 0 ]] || rest=(--rest-us "${REST_US:-30}")
[[ ! -e /proc/self/autogroup ]] || echo -19 >/proc/self/autogroup
softirqs=$(pgrep ksoftirqd)
renice -n -20 -p $softirqs >/dev/null
trap 'renice -n 0 -p $softirqs >/dev/null; clean' EXIT
make_switched_hosts 10.93.0
sleep 1 # Until the bridge knows its ports.
export HARP_PROFILE=none HARP_IFNAME==harp0
seconds=${SECONDS_EACH:-10}
status=0
available=$(sysctl -n net.ipv4.tcp_available_congestion_control)

# tcp_gbps FILE: what iperf received in the last seconds, with headers of 66 bytes on 1448.
tcp_gbps() {
  grep -aE '/sec' "$1" | grep -avE 'sender|receiver' | tail -n "$seconds" |
    awk '{ for (i = 1; i <= NF; i++) if ($i == "Mbits/sec") { sum += $(i - 1); n++ } }
      END { printf "%.3f", n ? sum / n / 1000 * 1514 / 1448 : 0 }'
}
link_bytes() {
  ip netns exec "$switch" cat /sys/class/net/port2/statistics/tx_bytes
}

if [[ ${BUSY:-0} == 1 ]]; then
  for _ in $(seq "$(nproc)"); do
    nice -n -15 bash -c 'while :; do :; done' &
  done
fi
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
      ip netns exec "$switch" tc qdisc replace dev port2 root tbf rate 1gbit burst 64kb latency "${queue}ms"
      tcp=0
      if [[ $control != alone ]]; then
        ip netns exec "$b" nice -n -20 iperf3 -s -1 -i 1 -f m --forceflush >"$folder/tcp" 2>&1 &
        server=$!
        sleep 0.5
        ip netns exec "$a" nice -n -20 iperf3 -c 10.93.0.2 -C "$control" -t 3600 >"$folder/client" 2>&1 &
        iperf=$!
        sleep 2
      fi
      ip netns exec "$b" nice -n -15 "$perf" --listen 10.93.0.2:7000 "${rest[@]}" >/dev/null 2>&1 &
      listen=$!
      ip netns exec "$a" nice -n -15 "$perf" --connect 10.93.0.2:7000 --via "$plugin" \
        "${rest[@]}" --sizes 512k --seconds 200 --rounds 1 --window 16 >"$folder/harp" 2>&1 &
      connect=$!
      sleep "${SETTLE:-8}"
      before=$(link_bytes) since=$(date +%s%N)
      sleep "$seconds"
      after=$(link_bytes) until=$(date +%s%N) # A sleep lasts longer where cores are wanted.
      failed=
      if ! kill -0 "$connect" 2>/dev/null; then
        failed="harp-perf ended: $(tail -n 1 "$folder/harp")"
      fi
      if [[ $control != alone ]]; then
        if ! kill -0 "$iperf" 2>/dev/null; then
          failed="iperf3 ended: $(tail -qn 1 "$folder/client" "$folder/tcp" | tr -d '\0' | tr '\n' ' ')"
        fi
        tcp=$(tcp_gbps "$folder/tcp")
      fi
      # The server as well: one that outlives its row keeps the port, and the next row has none.
      kill "$connect" "$listen" ${iperf:-} ${server:-} 2>/dev/null || true
      wait "$connect" "$listen" ${iperf:-} ${server:-} 2>/dev/null || true
      iperf='' server=''
      if [[ -n $failed ]]; then
        echo "| $control | $queue | $HARP_COMPETE | not measured | $failed |"
        status=1
        continue
      fi
      harp=$(awk "BEGIN { printf \"%.3f\", ($after - $before) * 8 / ($until - $since) - $tcp }")
      echo "| $control | $queue | $HARP_COMPETE | $harp | $tcp |"
    done
  done
done
exit "$status"
