#!/usr/bin/env bash
# With several engines, packets of data come to the queue of the session's own engine before long, where
# the queue is chosen by a hash of the flow: DPDK's af_packet driver over a veth pair, whose packets the
# kernel spreads over two sockets (PACKET_FANOUT_HASH) as a NIC does over queues. Usage: check_steering.sh
# HARP_PERF PLUGIN_SO. Needs root and iproute2; exits 77 without, which ctest shows as skipped.
#
# The hash is the same for both directions of a flow, so acknowledgements may go astray all the time.
set -euo pipefail
perf=$1 plugin=$2
source "$(dirname "$0")/two_hosts.sh"
make_hosts 10.93.0
export NET_CONFORM_DEBUG=1 HARP_PROFILE=none HARP_DATAPATH=dpdk HARP_ENGINES=2 HARP_MODE=adaptive
nic=net_af_packet0,iface=harp0,qpairs=2
port=$((20000 + RANDOM % 10000))
HARP_DPDK=$nic@10.95.0.2/24 timeout 100 ip netns exec "$b" "$perf" --listen "10.93.0.2:$port" \
  >"$folder/there" 2>&1 &
status=0
HARP_DPDK=$nic@10.95.0.1/24 timeout 100 ip netns exec "$a" "$perf" --connect "10.93.0.2:$port" \
  --via "$plugin" --sizes 64k --seconds 0.3 --rounds 2 >"$folder/here" 2>&1 || status=$?
if ((status != 0)) || ! wait %1; then
  cat "$folder/here" "$folder/there" >&2
  exit 1
fi

# sum COUNTER FILE: over the engines of a process, each of which says it when its session closes.
sum() { grep -o "\b$1 [0-9]*" "$2" | awk '{sum += $2} END {print sum + 0}'; }
for log in "$folder/here" "$folder/there"; do
  received=$(sum data_bytes_received "$log") astray=$(sum wire_bytes_copied_in "$log")
  echo "$(basename "$log"): $received bytes of payload received, $astray bytes came astray"
  if ((received < 1000000 || astray * 10 > received)); then
    grep "NET/HARP : close" "$log" >&2
    echo "more than a tenth came astray" >&2
    exit 1
  fi
done
