# Two network namespaces, "$a" and "$b", joined by a veth pair harp0: two hosts without a second host.
# To be sourced, by scripts that also want a "$folder" of their own; clean() removes all that, and jobs, at
# the end.
a=harp-a-$$ b=harp-b-$$
folder=$(mktemp -d)
clean() {
  kill $(jobs -p) 2>/dev/null || true
  rm -rf "$folder"
  for namespace in "$a" "$b"; do
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

# make_hosts PREFIX [options of each end...]: joined by one veth pair. The ends get the addresses PREFIX.1
# and PREFIX.2, or none where PREFIX is empty. MTU may be set.
make_hosts() {
  local prefix=$1
  shift
  make_namespaces "$a" "$b"
  ip -n "$a" link add harp0 "$@" type veth peer name harp0 netns "$b" "$@"
  if [[ -n $prefix ]]; then
    ip -n "$a" address add "$prefix.1/24" dev harp0
    ip -n "$b" address add "$prefix.2/24" dev harp0
  fi
  for namespace in "$a" "$b"; do
    ip -n "$namespace" link set harp0 up mtu "${MTU:-1500}"
  done
}
