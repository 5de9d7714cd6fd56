#!/usr/bin/env bash
# clang's thread-safety analysis over the engine and HARP: every access to a LIGHTCC_GUARDED_BY or
# HARP_GUARDED_BY member holds its mutex. CLANGXX names the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
compiler=${CLANGXX:-clang++-19}

if ! command -v "$compiler" >/dev/null; then
  echo "thread-safety: $compiler not found; install it (Debian: clang-19) or set CLANGXX" >&2
  exit 1
fi
flags=(-fsyntax-only -std=c++20 "-DLIGHTCC_VERSION=\"\"" -Icsrc -Iharp_plugin -Iharp_plugin/src
  -Wthread-safety -Werror=thread-safety)
if [[ $(uname -m) == x86_64 ]]; then
  flags+=(-march=x86-64-v4)  # The kernels of every SIMD level compile with the highest.
fi
left_out=none
if pkg-config --exists libdpdk 2>/dev/null; then
  read -ra dpdk <<<"$(pkg-config --cflags-only-I libdpdk)"
  flags+=("${dpdk[@]/#-I/-isystem}" -include rte_config.h)
else
  left_out=harp_plugin/src/dpdk/
  echo "thread-safety: $left_out is left out, as libdpdk is not here"
fi
mapfile -t sources < <(git ls-files --cached --others --exclude-standard 'csrc/lightcc/*.cpp' \
  'csrc/lightcc_tf/*.cpp' 'csrc/lightcc_cuda/nccl/*.cpp' 'csrc/lightcc_cuda/staging/*.cpp' \
  'harp_plugin/src/*.cpp' 'harp_plugin/tools/net_conform/*.cpp' \
  'harp_plugin/tests/reference_plugin/*.cpp' | grep -v "^$left_out")
printf '%s\0' "${sources[@]}" | xargs -0 -P "$jobs" -n 1 "$compiler" "${flags[@]}"
echo "thread-safety: ${#sources[@]} sources, no findings"
