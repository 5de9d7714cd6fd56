#!/usr/bin/env bash
# Fetches the NCCLs whose plugin loaders `make test-all` tests: library and header of a wheel for each
# rule, under .venv-nccl. 200 to 350 MB each to download, 250 to 470 MB each on disk; needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

for version in 2.20.5 2.21.5 2.26.2 2.32.3; do
  home=.venv-nccl/$version
  if [[ -e $home/libnccl.so.2 && -e $home/nccl.h ]]; then
    continue
  fi
  echo "NCCL: fetching nvidia-nccl-cu12==$version into $home"
  mkdir -p "$home"
  "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$home" \
    "nvidia-nccl-cu12==$version"
  (cd "$home" && "${PYTHON:-python3}" -m zipfile --extract ./*.whl unpacked)
  mv "$home"/unpacked/nvidia/nccl/{lib/libnccl.so.2,include/nccl.h} "$home/"
  rm -r "$home/unpacked" "$home"/*.whl
done
echo "NCCL: nothing is missing"
