# Two network namespaces, "$a" and "$b", joined by a veth pair harp0, or by a third, "$switch": two hosts
# without a second host. To be sourced, by scripts that also want a "$folder" of their own; clean()
# removes all that, and jobs, at the end.
a=harp-a-$$ b=harp-b-$$ switch=harp-s-$$
folder=$(mktemp -d)
clean() {
  kill $(jobs -p) 2>/dev/null || true
  rm -rf "$folder"
  for namespace in "$a" "$b" "$switch"; do
    ip netns delete "$namespace" 2>/dev/null || true
  done
}
trap clean EXIT

# make_namespaces NAME...: exits 77, which ctest shows as skipped, where there are none.
make_namespaces() {
  for namespace in "$@"; do
    if ! ip netns add "$namespace" 2>/dev/null; then
      echo "SKIP: no network namespaces here (root and iproute2 are needed)"
      exit 77
    fi
    ip -n "$namespace" link set lo up
  done
}

# address_hosts PREFIX: gives both ends the addresses PREFIX.1 and PREFIX.2, or none where PREFIX is empty.
# MTU may be set.
address_hosts() {
  if [[ -n $1 ]]; then
    ip -n "$a" address add "$1.1/24" dev harp0
    ip -n "$b" address add "$1.2/24" dev harp0
  fi
  for namespace in "$a" "$b"; do
    ip -n "$namespace" link set harp0 up mtu "${MTU:-1500}"
  done
}

# make_hosts PREFIX [options of each end...]: joined by one veth pair.
make_hosts() {
  local prefix=$1
  shift
  make_namespaces "$a" "$b"
  ip -n "$a" link add harp0 "$@" type veth peer name harp0 netns "$b" "$@"
  address_hosts "$prefix"
}

# make_switched_hosts PREFIX: joined by a bridge, whose ports port1 and port2 lead to "$a" and "$b".
make_switched_hosts() {
  make_namespaces "$a" "$b" "$switch"
  ip -n "$switch" link add bridge type bridge
  ip -n "$a" link add harp0 type veth peer name port1 netns "$switch"
  ip -n "$b" link add harp0 type veth peer name port2 netns "$switch"
  for port in port1 port2; do
    ip -n "$switch" link set "$port" master bridge up mtu "${MTU:-1500}"
  done
  ip -n "$switch" link set bridge up
  address_hosts "$1"
}
