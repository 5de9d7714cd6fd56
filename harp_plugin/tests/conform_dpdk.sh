#!/usr/bin/env bash
# Conformance of HARP over DPDK between two processes. Usage: conform_dpdk.sh NET_CONFORM PLUGIN_SO ABI
# KIND [net-conform options]. KIND: "virtio", the virtual NIC of virtual machines, virtio_user in one
# process and vhost in the other; "af_packet", DPDK's driver over a veth pair between two namespaces
# (root and iproute2; exits 77 without, which ctest shows as skipped).
set -euo pipefail
net_conform=$1 plugin=$2 abi=$3 kind=$4
shift 4

export HARP_DATAPATH=dpdk HARP_PEER_TIMEOUT=${HARP_PEER_TIMEOUT:-5}
folder=$(mktemp -d)
source "$(dirname "$0")/two_hosts.sh"
clean() {
  rm -rf "$folder"
  remove_hosts
}
trap clean EXIT
run=("$net_conform" --plugin "$plugin" --abi "$abi" --processes)

case $kind in
  virtio)
    queues=${HARP_ENGINES:-1}
    HARP_DPDK="net_vhost0,iface=$folder/nic,queues=$queues,client=1@10.95.0.1/24" "${run[@]}" \
      --peer-prefix \
      "env HARP_DPDK=virtio_user0,path=$folder/nic,queues=$queues,server=1@10.95.0.2/24" "$@"
    ;;
  af_packet)
    make_hosts ""
    HARP_DPDK=net_af_packet0,iface=harp0@10.95.0.1/24 ip netns exec "$a" "${run[@]}" --peer-prefix \
      "ip netns exec $b env HARP_DPDK=net_af_packet0,iface=harp0@10.95.0.2/24" "$@"
    ;;
  *)
    echo "KIND $kind: expected virtio or af_packet" >&2
    exit 2
    ;;
esac
