#!/usr/bin/env bash
# Brings what compiles for aarch64 and runs it here: installs a cross-compiler and qemu-user, and unpacks an
# aarch64 CPython and GoogleTest into build/aarch64-root. Needs apt, and root where the first two are missing.
# The suite is that of Debian whose GCC cmake/aarch64.cmake names: programs need its C library.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/aarch64-root

tools/install_system_packages.sh aarch64
if ! qemu-aarch64 -L "$root" "$root/usr/bin/python3.11" -I -c 'import ctypes, ssl, zlib' 2>/dev/null; then
  tools/unpack_packages.sh "$root" arm64 bookworm python3.11 libstdc++6 libgtest-dev
fi
