#!/usr/bin/env bash
# Unpacks a CPython that this machine's Debian does not have, from a newer suite, into
# build/pythons/VERSION, where tools/interpreters.py finds it. It runs on the C library of that suite,
# which is unpacked beside it. apt checks what it fetches. Needs apt, dpkg-deb and patchelf, but not
# root. Only x86-64, as the wheel. uv and pyenv fetch CPython from GitHub or python.org, which machines
# that have only mirrors of packages do not reach.
#
# Usage: get_python.sh VERSION [SUITE]    (for instance: get_python.sh 3.14 sid)
# MIRROR: where Debian is; without, where this machine's apt has it.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: get_python.sh VERSION [SUITE]}
suite=${2:-sid}
home=$PWD/build/pythons/$version
python=$home/usr/bin/python$version
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
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
for tool in apt-get dpkg-deb patchelf; do
  command -v "$tool" >/dev/null || give_up "without $tool it cannot be unpacked"
done
[[ -r $keyring ]] || give_up "no $keyring to check Debian's packages with"
if [[ -z ${MIRROR:-} ]]; then
  # shellcheck disable=SC2016  # apt replaces it.
  MIRROR=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n 1)
  [[ -n $MIRROR ]] || give_up "this machine's apt does not know where Debian is; say MIRROR=URL"
fi

rm -rf "$home"
mkdir -p "$home"/apt/{etc/apt.conf.d,etc/preferences.d,lists/partial,cache/archives/partial}
# An apt of our own, which knows that suite, and has nothing installed.
touch "$home/apt/status"
echo "deb [arch=amd64 signed-by=$keyring] $MIRROR $suite main" >"$home/apt/etc/sources.list"
own=(-q -y -o "Dir::Etc=$home/apt/etc" -o "Dir::State=$home/apt" -o "Dir::State::lists=$home/apt/lists"
  -o "Dir::State::status=$home/apt/status" -o "Dir::Cache=$home/apt/cache" -o APT::Sandbox::User=
  -o APT::Architecture=amd64 -o Debug::NoLocking=1)
echo "CPython $version: fetching it from Debian $suite"
{
  apt-get "${own[@]}" update
  apt-get "${own[@]}" install --download-only --no-install-recommends \
    "python$version" "libpython$version-dev" libstdc++6
} >"$home/apt/log" 2>&1 || { tail -n 5 "$home/apt/log" >&2; give_up "apt-get did not bring it"; }
for package in "$home"/apt/cache/archives/*.deb; do
  dpkg-deb --extract "$package" "$home"
done
rm -rf "$home"/{apt,etc,var,usr/sbin,usr/share}

# Debian's header names that of the architecture, which only its own compiler finds.
cp "$home/usr/include/$multiarch/python$version/pyconfig.h" "$home/usr/include/python$version/"
patchelf --set-interpreter "$home/usr/lib/$multiarch/ld-linux-x86-64.so.2" \
  --force-rpath --set-rpath "$home/usr/lib/$multiarch" "$python"
touch "$home/.ready"
works || give_up "it does not run here"
echo "$("$python" --version) is in build/pythons/$version"
