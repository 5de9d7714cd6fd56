#!/usr/bin/env bash
# How often HARP copies each byte, by its own counters, on every datapath and in both directions, beside
# what docs/harp/runtime.md promises. Usage: check_copies.sh HARP_PERF PLUGIN_SO KIND. KIND: udp; af_xdp
# (needs root, iproute2 and BPF; exits 77 without, which ctest shows as skipped); virtio and vhost, DPDK's
# virtual NIC with the sender on that side of it.
set -euo pipefail
perf=$1 plugin=$2 kind=$3
source "$(dirname "$0")/two_hosts.sh"
export NET_CONFORM_DEBUG=1 HARP_ENGINES=1 HARP_PROFILE=none
address=127.0.0.1
here=(env) there=(env)  # The sender, and the receiver.
case $kind in
  udp)
    here+=(HARP_DATAPATH=udp HARP_IFNAME==lo) there+=(HARP_DATAPATH=udp HARP_IFNAME==lo)
    sent=0
    ;;
  af_xdp)
    make_hosts 10.93.0
    address=10.93.0.2
    here=(ip netns exec "$a" env HARP_DATAPATH=af_xdp HARP_IFNAME==harp0)
    there=(ip netns exec "$b" env HARP_DATAPATH=af_xdp HARP_IFNAME==harp0)
    sent=1
    ;;
  virtio | vhost)
    virtio="virtio_user0,path=$folder/nic,server=1@10.93.0.1/24"
    vhost="net_vhost0,iface=$folder/nic,client=1@10.93.0.2/24"
    here+=(HARP_DATAPATH=dpdk) there+=(HARP_DATAPATH=dpdk)
    if [[ $kind == virtio ]]; then
      here+=("HARP_DPDK=$virtio") there+=("HARP_DPDK=$vhost")
      sent=1  # The other process does not have the application's memory.
    else
      here+=("HARP_DPDK=$vhost") there+=("HARP_DPDK=$virtio")
      sent=0
    fi
    ;;
  *)
    echo "KIND $kind: expected udp, af_xdp, virtio or vhost" >&2
    exit 2
    ;;
esac

port=$((20000 + RANDOM % 10000))
timeout 60 "${there[@]}" "$perf" --listen "$address:$port" >"$folder/there" 2>&1 &
status=0
timeout 60 "${here[@]}" "$perf" --connect "$address:$port" --via "$plugin" --sizes 64k --seconds 0.1 \
  --rounds 1 >"$folder/here" 2>&1 || status=$?
if ((status != 0)) || ! wait %1; then
  cat "$folder/here" "$folder/there" >&2
  if grep -qF "needs CAP_BPF" "$folder/here" "$folder/there"; then
    echo "SKIP: no privilege for BPF programs here"
    exit 77
  fi
  exit 1
fi

# counter FILE NAME: from the last of its lines, when everything had been counted.
counter() {
  grep -oP "(?<![a-z_])$2 \K[0-9]+" "$folder/$1" | tail -n 1
}
# expect WHAT COPIED BYTES TIMES: within 2%, since acknowledgements are copied, too.
failed=0
expect() {
  awk -v what="$1" -v copied="$2" -v bytes="$3" -v times="$4" 'BEGIN {
    printf "%-28s %.3f copies per byte (of %d), promised %d\n", what, copied / bytes, bytes, times
    exit !(bytes > 1e7 && copied >= (times - 0.02) * bytes && copied <= (times + 0.02) * bytes)
  }' || failed=1
}
sent_bytes=$(counter here data_bytes_sent)              # Those sent again were copied again.
received_bytes=$(counter there data_bytes_received)     # New ones: what came twice is not placed twice.
expect "$kind, to send" "$(counter here wire_bytes_copied_out)" "$sent_bytes" "$sent"
expect "$kind, as received" "$(counter there wire_bytes_copied_in)" "$received_bytes" 0
expect "$kind, placement" "$(counter there bytes_copied)" "$received_bytes" 1
if ((failed)); then
  grep -hF "close: " "$folder/here" "$folder/there" >&2
  exit 1
fi
