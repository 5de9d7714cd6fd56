#!/usr/bin/env bash
# Conformance of a plugin between two network namespaces, joined by a veth pair: two hosts without a
# second host. Usage: conform_netns.sh NET_CONFORM PLUGIN_SO ABI [net-conform options]
#
# MTU and QUEUES, of the pair, may be set. Exits 77 where namespaces cannot be made (no root), or
# BPF programs where HARP_DATAPATH=af_xdp needs them, which ctest shows as skipped.
set -euo pipefail
net_conform=$1 plugin=$2 abi=$3
shift 3

source "$(dirname "$0")/two_hosts.sh"
log=$folder/log

queues=${QUEUES:-1}
make_hosts 10.91.0 numrxqueues "$queues" numtxqueues "$queues"
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
