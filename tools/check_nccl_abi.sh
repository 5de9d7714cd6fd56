#!/usr/bin/env bash
# Holds lightcc's own declarations of NCCL against nccl.h of each version that install_nccl.sh has
# fetched. Usage: check_nccl_abi.sh FOLDER, which has VERSION/nccl.h
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/.."

# All that nccl.h takes of CUDA's own header, which has many more.
cuda=$(mktemp -d)
trap 'rm -r "$cuda"' EXIT
printf 'typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n' >"$cuda/cuda_runtime.h"
echo >"$cuda/cuda_fp16.h"

for header in "$folder"/*/nccl.h; do
  "${CXX:-c++}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Icsrc -isystem "$cuda" \
    -isystem "$(dirname "$header")" tools/cuda_abi/nccl_abi.cpp
  echo "NCCL: what lightcc calls agrees with nccl.h of $(basename "$(dirname "$header")")"
done
