#!/usr/bin/env bash
# Conformance of a plugin between two network namespaces, joined by a veth pair: two hosts without a
# second host. Usage: conform_netns.sh NET_CONFORM PLUGIN_SO ABI [net-conform options]
#
# MTU and QUEUES, of the pair, may be set. Exits 77 where namespaces cannot be made (no root), or
# BPF programs where HARP_DATAPATH=af_xdp needs them, which ctest shows as skipped.
set -euo pipefail
net_conform=$1 plugin=$2 abi=$3
shift 3

a=harp-a-$$ b=harp-b-$$
log=$(mktemp)
clean() {
  rm -f "$log"
  ip netns delete "$a" 2>/dev/null || true
  ip netns delete "$b" 2>/dev/null || true
}
trap clean EXIT

if ! ip netns add "$a" 2>/dev/null; then
  echo "SKIP: no network namespaces here (root and iproute2 are needed)"
  exit 77
fi
ip netns add "$b"
queues=${QUEUES:-1}
ip -n "$a" link add harp0 numrxqueues "$queues" numtxqueues "$queues" type veth \
  peer name harp0 netns "$b" numrxqueues "$queues" numtxqueues "$queues"
ip -n "$a" address add 10.91.0.1/24 dev harp0
ip -n "$b" address add 10.91.0.2/24 dev harp0
for namespace in "$a" "$b"; do
  ip -n "$namespace" link set lo up
  ip -n "$namespace" link set harp0 up mtu "${MTU:-1500}"
done
run=(ip netns exec "$a" "$net_conform" --plugin "$plugin" --abi "$abi"
  --peer-prefix "ip netns exec $b" "$@")
if [[ ${HARP_DATAPATH:-} != af_xdp ]]; then
  "${run[@]}"
elif ! NET_CONFORM_DEBUG=1 "${run[@]}" >"$log" 2>&1; then
  cat "$log"
  if grep -qF "needs CAP_BPF" "$log"; then
    echo "SKIP: no privilege for BPF programs here"
    exit 77
  fi
  exit 1
fi
