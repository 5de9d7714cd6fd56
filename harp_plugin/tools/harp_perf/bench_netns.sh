#!/usr/bin/env bash
# harp-perf between two network namespaces, joined by veth pairs with their default offloads, a core
# each. Needs root, iproute2. Usage: bench_netns.sh BUILD_FOLDER [harp-perf options]
#
# AF_XDP has a pair of its own: the kernel switches segmentation off where there is an XDP program,
# which is hard on the kernel's TCP beside it. DPDK, where it is built, has the virtual NIC of virtual
# machines: virtio_user in one process, vhost in the other. VIAS="udp af_xdp dpdk" chooses.
#
#   make harp && harp_plugin/tools/harp_perf/bench_netns.sh build/harp --seconds 1 --rounds 5
#
# MTU=8500 chooses another MTU. Real-time priority, so that other programs do not disturb it.
# DPDK gets huge pages, HUGE_PAGES of 2 MiB (640; 0: what is there), as harp-setup would give it.
set -euo pipefail
build=$(realpath "$1")
shift

a=harp-perf-a-$$ b=harp-perf-b-$$
folder=$(mktemp -d)
pages=/proc/sys/vm/nr_hugepages
pages_before=$(<"$pages")
clean() {
  rm -rf "$folder"
  [[ ! -w $pages ]] || echo "$pages_before" >"$pages"
  ip netns delete "$a" 2>/dev/null || true
  ip netns delete "$b" 2>/dev/null || true
}
trap clean EXIT
[[ ! -w $pages ]] || echo $((pages_before + ${HUGE_PAGES:-640})) >"$pages"
ip netns add "$a"
ip netns add "$b"
for pair in 0 1; do
  ip -n "$a" link add "harp$pair" type veth peer name "harp$pair" netns "$b"
  ip -n "$a" address add "10.92.$pair.1/24" dev "harp$pair"
  ip -n "$b" address add "10.92.$pair.2/24" dev "harp$pair"
  for namespace in "$a" "$b"; do
    ip -n "$namespace" link set "harp$pair" up mtu "${MTU:-1500}"
  done
done
plugin=$build/libnccl-net-harp.so
HARP_DPDK_LIBRARY=$build/libharp-dpdk.so
HARP_DPDK_MTU=${MTU:-1500}
export HARP_DPDK_LIBRARY HARP_DPDK_MTU
socket=$folder/nic
declare -A via=(
  [udp]="HARP_IFNAME==harp0 $plugin"
  [af_xdp]="HARP_IFNAME==harp1 HARP_DATAPATH=af_xdp $plugin"
  [dpdk]="HARP_DATAPATH=dpdk $plugin"
)
vias=()
for name in ${VIAS:-udp af_xdp dpdk}; do
  if [[ $name != dpdk || -e $HARP_DPDK_LIBRARY ]]; then
    vias+=(--via "${via[$name]}")
  fi
done
HARP_DPDK="net_vhost0,iface=$socket,client=1@10.92.2.2/24" \
  ip netns exec "$b" chrt -r 1 taskset -c 1 "$build/harp-perf" --listen 10.92.0.2:7000 &
HARP_DPDK="virtio_user0,path=$socket,server=1@10.92.2.1/24" \
  ip netns exec "$a" chrt -r 1 taskset -c 0 "$build/harp-perf" --connect 10.92.0.2:7000 \
  --via tcp --via tcp-each-way "${vias[@]}" "$@"
wait
