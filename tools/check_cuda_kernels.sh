#!/usr/bin/env bash
# Compiles the CUDA kernels to PTX for sm_70 (ISA 7.0) with clang alone, without a CUDA toolkit. Fails
# on any warning, and where an instruction is contracted or flushes subnormal numbers. CLANGXX names
# the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=${CLANGXX:-clang++-19}

if ! command -v "$compiler" >/dev/null; then
  echo "CUDA kernels: $compiler not found; install it (Debian: clang-19) or set CLANGXX" >&2
  exit 1
fi
flags=(-x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_70 -Wno-unknown-cuda-version
  -Xclang -target-feature -Xclang -ptx85 -Xclang -target-feature -Xclang +ptx70
  -std=c++20 -O3 -fno-unroll-loops -ffp-contract=off -Wall -Wextra -Werror -Icsrc)
entries=0
for kernel in csrc/lightcc_cuda/kernels/*.cu; do
  ptx=$("$compiler" "${flags[@]}" -S "$kernel" -o -)
  if grep -nE '\bfma\b|\bmad\.(rn\.)?f|\.ftz' <<<"$ptx"; then
    echo "CUDA kernels: $kernel: contracts arithmetic or flushes subnormal numbers" >&2
    exit 1
  fi
  entries=$((entries + $(grep -c '^\.visible \.entry' <<<"$ptx")))
done
echo "CUDA kernels: $entries, no findings"
