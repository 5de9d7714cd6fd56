#!/usr/bin/env bash
# Conformance of HARP over DPDK between two processes. Usage: conform_dpdk.sh NET_CONFORM PLUGIN_SO ABI
# KIND [net-conform options]. KIND: "virtio", the virtual NIC of virtual machines, virtio_user in one
# process and vhost in the other; "af_packet", DPDK's driver over a veth pair between two namespaces
# (root and iproute2; exits 77 without, which ctest shows as skipped).
#
# HUGE_PAGES: so many pages of 2 MiB are reserved for the test, which must use them (root and memory; exits
# 77 without). Else DPDK takes what the machine has, or ordinary pages.
set -euo pipefail
net_conform=$1 plugin=$2 abi=$3 kind=$4
shift 4

export HARP_DATAPATH=dpdk HARP_PEER_TIMEOUT=${HARP_PEER_TIMEOUT:-4}
source "$(dirname "$0")/two_hosts.sh"
run=("$net_conform" --plugin "$plugin" --abi "$abi" --processes)

if [[ -n ${HUGE_PAGES:-} ]]; then
  pages=/sys/kernel/mm/hugepages/hugepages-2048kB reserved_before=
  if [[ -w $pages/nr_hugepages ]]; then
    reserved_before=$(<"$pages/nr_hugepages")
    trap 'clean; echo "$reserved_before" >"$pages/nr_hugepages"' EXIT
    echo $((reserved_before + HUGE_PAGES)) >"$pages/nr_hugepages"
  fi
  if [[ -z $reserved_before ]] || (($(<"$pages/free_hugepages") < HUGE_PAGES)); then
    echo "SKIP: $HUGE_PAGES huge pages cannot be reserved here"
    exit 77
  fi
  free_before=$(<"$pages/free_hugepages")
  while sleep 0.1; do
    (($(<"$pages/free_hugepages") >= free_before)) || touch "$folder/used"
  done &
fi

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

if [[ -n ${HUGE_PAGES:-} && ! -e $folder/used ]]; then
  echo "the huge pages were not used" >&2
  exit 1
fi
