#!/usr/bin/env bash
# Holds lightcc's own declarations of the CUDA driver against cuda.h of CUDA 12 and 13. Usage:
# check_cuda_abi.sh ENVIRONMENT, a virtual environment with tools/requirements-cuda.txt
set -euo pipefail
packages=$(echo "$(realpath "$1")"/lib/python*/site-packages)
cd "$(dirname "$0")/.."

for headers in cuda_runtime cu13; do
  "${CXX:-c++}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Icsrc \
    -isystem "$packages/nvidia/$headers/include" tools/cuda_abi/driver_abi.cpp
  version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$packages/nvidia/$headers/include/cuda.h")
  echo "CUDA driver: $(grep -c '^  X(' csrc/lightcc_cuda/driver/functions.hpp) functions agree with cuda.h of $version"
done
