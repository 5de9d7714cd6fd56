#!/usr/bin/env bash
# What a plugin's file may show and need. Usage: check_plugin_file.sh PLUGIN_SO SANITIZERS
#
# A library that it needs and that a machine lacks makes NCCL use its sockets without a word, and a
# symbol too many may clash with what the program has.
set -euo pipefail
plugin=$1 sanitizers=$2
fail() {
  echo "$plugin: $*" >&2
  exit 1
}

shown=$(nm --dynamic --defined-only --format=posix "$plugin" | cut -d' ' -f1 | sort)
for version in 4 5 6 7 8 9 10 11 12; do
  grep -qx "ncclNetPlugin_v$version" <<<"$shown" || fail "does not show ncclNetPlugin_v$version"
done
others=$(grep -vE '^(ncclNetPlugin_v([4-9]|1[0-2])|harp_[a-z0-9_]+)$' <<<"$shown" || true)
[[ -z $others ]] || fail "shows more than its tables: $others"

readelf --dynamic --wide "$plugin" | grep -q 'FLAGS_1.*NODELETE' ||
  fail "is unmapped by dlclose, with its threads"

if [[ -z $sanitizers ]]; then
  needed=$(readelf --dynamic --wide "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  others=$(grep -vE '^(libc|libm|libpthread)\.so\.[0-9]+$|^ld-linux' <<<"$needed" || true)
  [[ -z $others ]] || fail "needs $others"
fi
echo "$plugin: $(wc -l <<<"$shown") symbols, needs ${needed:-(not looked at)}" | tr '\n' ' '
