#!/usr/bin/env bash
# Unpacks a CPython that this machine's Debian does not have, from a newer suite, into
# build/pythons/VERSION, where tools/interpreters.py finds it. It runs on the C library of that suite,
# which is unpacked beside it. Needs apt, dpkg-deb and patchelf, but not root. Only on x86-64. uv and pyenv
# fetch CPython from GitHub or python.org, which machines that have only mirrors of packages do not reach.
#
# Usage: get_python.sh VERSION [SUITE]    (for instance: get_python.sh 3.14 sid)
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: get_python.sh VERSION [SUITE]}
suite=${2:-sid}
home=$PWD/build/pythons/$version
python=$home/usr/bin/python$version
multiarch=x86_64-linux-gnu

give_up() {
  echo "CPython $version: $1" >&2
  exit 1
}

# Modules that Debian has in packages of their own, or that need a library.
works() {
  "$python" -I -c 'import ctypes, hashlib, lzma, ssl, venv, zlib' && [[ -e $home/.ready ]]
}

if [[ -x $python ]] && works; then
  echo "CPython $version is in build/pythons/$version"
  exit 0
fi
[[ $(uname -m) == x86_64 ]] || give_up "needs x86-64, this is $(uname -m)"
command -v patchelf >/dev/null || give_up "without patchelf it cannot be unpacked"
tools/unpack_packages.sh "$home" amd64 "$suite" "python$version" "libpython$version-dev" libstdc++6

# Debian's header names that of the architecture, which only its own compiler finds.
cp "$home/usr/include/$multiarch/python$version/pyconfig.h" "$home/usr/include/python$version/"
patchelf --set-interpreter "$home/usr/lib/$multiarch/ld-linux-x86-64.so.2" \
  --force-rpath --set-rpath "$home/usr/lib/$multiarch" "$python"
touch "$home/.ready"
works || give_up "it does not run here"
echo "$("$python" --version) is in build/pythons/$version"
