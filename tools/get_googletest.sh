#!/usr/bin/env bash
# Unpacks Debian's package of GoogleTest into build/googletest, for a machine that has none. Needs apt
# but not root: where the system's lists of packages are empty, it fetches lists of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
home=$PWD/build/googletest
package=libgtest-dev

give_up() {
  echo "GoogleTest is not installed, and $1." >&2
  echo "Install it (Debian, Ubuntu: $package; Fedora: gtest-devel; Arch, conda-forge: gtest)." >&2
  exit 1
}

for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || give_up "without $tool it cannot be fetched"
done
rm -rf "$home"
mkdir -p "$home/apt/lists/partial" "$home/apt/cache/archives/partial"
cd "$home/apt"
own=(-o "Dir::State::lists=$home/apt/lists" -o "Dir::Cache=$home/apt/cache" -o APT::Sandbox::User=)
if ! apt-get -q download "$package" >log 2>&1; then
  {
    apt-get -q "${own[@]}" update && apt-get -q "${own[@]}" download "$package"
  } >>log 2>&1 || give_up "apt-get did not bring it: $(grep '^E:' log | tail -n 1)"
fi
dpkg-deb --extract "$package"_*.deb "$home"
rm -rf "$home/apt"
echo "GoogleTest is in build/googletest"
