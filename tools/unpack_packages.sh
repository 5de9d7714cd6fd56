#!/usr/bin/env bash
# Unpacks packages of a Debian suite, with all that they depend on, into a folder, which is made anew. Nothing
# is installed, and apt checks what it fetches. Needs apt and dpkg-deb, but not root.
#
# Usage: unpack_packages.sh FOLDER ARCHITECTURE SUITE PACKAGE...
# MIRROR: where Debian is; without, where this machine's apt has it.
set -euo pipefail
home=$1 architecture=$2 suite=$3
shift 3
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

give_up() {
  echo "$*" >&2
  exit 1
}

for tool in apt-get dpkg-deb; do
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
echo "deb [arch=$architecture signed-by=$keyring] $MIRROR $suite main" >"$home/apt/etc/sources.list"
own=(-q -y -o "Dir::Etc=$home/apt/etc" -o "Dir::State=$home/apt" -o "Dir::State::lists=$home/apt/lists"
  -o "Dir::State::status=$home/apt/status" -o "Dir::Cache=$home/apt/cache" -o APT::Sandbox::User=
  -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o Debug::NoLocking=1)
echo "fetching $* for $architecture from Debian $suite"
{
  apt-get "${own[@]}" update
  apt-get "${own[@]}" install --download-only --no-install-recommends "$@"
} >"$home/apt/log" 2>&1 || { tail -n 5 "$home/apt/log" >&2; give_up "apt-get did not bring it"; }
for package in "$home"/apt/cache/archives/*.deb; do
  dpkg-deb --extract "$package" "$home"
done
rm -rf "$home"/{apt,etc,var,usr/sbin,usr/share}
