#!/usr/bin/env bash
# Makes sure that the packages which `make test-all` and `make sanitize` need are there, or, with the
# argument "pods" or "aarch64", those of `make test-pods` or `make test-aarch64`. As root on a machine with
# apt it installs what is missing, visibly; elsewhere it names what is missing and fails.
set -euo pipefail

packages=(clang-19 iproute2 libclang-rt-19-dev libdpdk-dev libgtest-dev
  libpmi2-0 libpmix-dev munge openjdk-17-jre-headless openssh-client openssh-server pkgconf
  slurm-client slurmctld slurmd)
case ${1:-} in
  pods) packages=(buildah crun debootstrap iproute2 openssh-client) ;;
  aarch64) packages=(g++-12-aarch64-linux-gnu qemu-user) ;;
esac

missing=()
for package in "${packages[@]}"; do
  if ! dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null |
    grep -qx installed; then
    missing+=("$package")
  fi
done
if ((${#missing[@]} == 0)); then
  echo "system packages: nothing is missing"
  exit 0
fi
if ! command -v apt-get >/dev/null || ((EUID != 0)); then
  echo "system packages: missing ${missing[*]}" >&2
  echo "Install them (Debian: sudo apt-get install ${missing[*]}) and try again." >&2
  exit 1
fi
echo "system packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
