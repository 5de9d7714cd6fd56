#!/usr/bin/env bash
# Compiles the CUDA kernels to PTX for sm_70 (ISA 7.0) with clang alone, without a CUDA toolkit, and
# compares the result with csrc/lightcc_cuda/ptx, which is in the library; --write puts it there.
# Fails on any warning, and where an instruction is contracted or flushes subnormal numbers. CLANGXX
# names the compiler, whose version the PTX depends on.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=${CLANGXX:-clang++-19}
committed=csrc/lightcc_cuda/ptx

if ! command -v "$compiler" >/dev/null; then
  echo "CUDA kernels: $compiler not found; install it (Debian: clang-19) or set CLANGXX" >&2
  exit 1
fi
flags=(-x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_70 -Wno-unknown-cuda-version
  -Xclang -target-feature -Xclang -ptx85 -Xclang -target-feature -Xclang +ptx70
  -std=c++20 -O3 -fno-unroll-loops -ffp-contract=off -Wall -Wextra -Werror -Icsrc)
made=$(mktemp -d)
trap 'rm -r "$made"' EXIT
for kernel in csrc/lightcc_cuda/kernels/*.cu; do
  ptx=$made/$(basename "$kernel" .cu).ptx
  # Without comments, which name the compiler's labels a second time.
  "$compiler" "${flags[@]}" -S "$kernel" -o - |
    sed -E 's:[[:space:]]*//.*$::; s/[[:space:]]+/ /g; s/ $//; /^$/d' >"$ptx"
  if grep -nE '\bfma\b|\bmad\.(rn\.)?f|\.ftz' "$ptx"; then
    echo "CUDA kernels: $kernel: contracts arithmetic or flushes subnormal numbers" >&2
    exit 1
  fi
done
if [[ ${1:-} == --write ]]; then
  mkdir -p "$committed"
  rm -f "$committed"/*.ptx
  cp "$made"/*.ptx "$committed"
elif ! diff -rq "$made" "$committed" >&2; then
  echo "CUDA kernels: $committed is not what $compiler makes of the sources: make kernels" >&2
  "$compiler" --version >&2
  exit 1
fi
echo "CUDA kernels: $(cat "$made"/*.ptx | grep -c '^\.visible \.entry') in PTX, no findings"
