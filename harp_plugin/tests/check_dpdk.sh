#!/usr/bin/env bash
# What HARP says where DPDK cannot do what is asked; and dpdk-limit, which must bring every frame. Usage:
# check_dpdk.sh NET_CONFORM PLUGIN_SO DPDK_LIMIT
set -euo pipefail
net_conform=$1 plugin=$2 limit=$3
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
export NET_CONFORM_DEBUG=1 HARP_PROFILE=none HARP_DATAPATH=dpdk

# expect TEXT NAME=VALUE...: the plugin's log has TEXT, and the process neither hangs nor dies of it.
expect() {
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
expect "HARP_DATAPATH=dpdk: expected HARP_DPDK beside it" HARP_DPDK=
expect "HARP_DPDK=$nic: expected DEVICE@IPV4/PREFIX" HARP_DPDK="$nic"
expect "DPDK device net_nothing0: " HARP_DPDK=net_nothing0@10.95.0.1/24
expect "DPDK device 0000:ff:1f.7: " HARP_DPDK=0000:ff:1f.7@10.95.0.1/24
expect "has 1 queue(s), and so at most as many engines, not 2" HARP_ENGINES=2 \
  HARP_DPDK="$nic,queues=1@10.95.0.1/24"
expect "needs libharp-dpdk.so and DPDK 22.11: $folder/gone.so" HARP_DPDK="$nic@10.95.0.1/24" \
  HARP_DPDK_LIBRARY="$folder/gone.so"

# refuse STATUS TEXT arguments...: of dpdk-limit.
refuse() {
  local wanted=$1 text=$2 status=0
  shift 2
  timeout 60 "$limit" "$@" >"$folder/log" 2>&1 || status=$?
  if ((status != wanted)) || ! grep -qF -- "$text" "$folder/log"; then
    echo "dpdk-limit $*: status $status, not $wanted, or not '$text' in:" >&2
    cat "$folder/log" >&2
    exit 1
  fi
}
refuse 2 "usage: dpdk-limit"
refuse 2 "usage: dpdk-limit" forward "$nic"
refuse 2 "usage: dpdk-limit" send "$nic" 15OO
refuse 1 "dpdk-limit: net_nothing0: " send net_nothing0
timeout 60 "$limit" send "virtio_user0,path=$folder/limit,server=1" >"$folder/sender" 2>&1 &
for ((i = 0; i < 100; ++i)); do
  [[ ! -S $folder/limit ]] || break
  sleep 0.1
done
refuse 0 "| 0 lost |" receive "net_vhost0,iface=$folder/limit,client=1"
