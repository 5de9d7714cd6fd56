#!/usr/bin/env bash
# What HARP says where DPDK cannot do what is asked. Usage: check_dpdk.sh NET_CONFORM PLUGIN_SO
set -euo pipefail
net_conform=$1 plugin=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export NET_CONFORM_DEBUG=1 HARP_PROFILE=none HARP_DATAPATH=dpdk

# complains TEXT NAME=VALUE...: the plugin's log has TEXT, and the process neither hangs nor dies of it.
complains() {
  local text=$1 status=0
  shift
  env "$@" timeout 60 "$net_conform" --plugin "$plugin" --abi 12 >"$folder/log" 2>&1 || status=$?
  if ((status == 0 || status > 100)) || ! grep -qF -- "$text" "$folder/log"; then
    echo "$*: status $status, and not '$text' in:" >&2
    grep "NET/HARP" "$folder/log" >&2 || tail -n 20 "$folder/log" >&2
    exit 1
  fi
}

nic="net_vhost0,iface=$folder/nic"
complains "HARP_DATAPATH=dpdk: expected HARP_DPDK beside it" HARP_DPDK=
complains "HARP_DPDK=$nic: expected DEVICE@IPV4/PREFIX" HARP_DPDK="$nic"
complains "DPDK device net_nothing0: " HARP_DPDK=net_nothing0@10.95.0.1/24
complains "DPDK device 0000:ff:1f.7: " HARP_DPDK=0000:ff:1f.7@10.95.0.1/24
complains "has 1 queue(s), and so at most as many engines, not 2" HARP_ENGINES=2 \
  HARP_DPDK="$nic,queues=1@10.95.0.1/24"
complains "needs libharp-dpdk.so and DPDK 22.11: $folder/gone.so" HARP_DPDK="$nic@10.95.0.1/24" \
  HARP_DPDK_LIBRARY="$folder/gone.so"
