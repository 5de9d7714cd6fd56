#!/usr/bin/env bash
# clang-tidy over the engine, its bindings and HARP. LINT_CHANGED=1: only sources that differ from the
# main branch or are not committed yet (headers are then seen through those sources alone).
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

linted=('csrc/*.cpp' 'harp_plugin/src/*.cpp' 'harp_plugin/tools/harp_perf/*.cpp')
mapfile -t sources < <(git ls-files --cached --others --exclude-standard "${linted[@]}")
if [[ ${LINT_CHANGED:-0} == 1 ]]; then
  main=$(git rev-parse --verify --quiet origin/main || git rev-parse --verify main)
  base=$(git merge-base HEAD "$main")
  mapfile -t sources < <(
    {
      git diff --name-only --diff-filter=d "$base" -- "${linted[@]}"
      git ls-files --others --exclude-standard "${linted[@]}"
    } | sort -u
  )
fi
if ! pkg-config --exists libdpdk 2>/dev/null; then
  echo "clang-tidy: harp_plugin/src/dpdk is left out, as libdpdk is not here"
  mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v '^harp_plugin/src/dpdk/')
fi
if ((${#sources[@]} == 0)); then
  echo "clang-tidy: no source changed"
  exit 0
fi

check_one() {
  local output
  if ! output=$(clang-tidy -p build/lint --quiet "$1" 2>&1); then
    grep -v -e '^[0-9]* warnings\? generated' -e '^Suppressed ' <<<"$output"
    return 1
  fi
}
export -f check_one

printf '%s\0' "${sources[@]}" | xargs -0 -P "$jobs" -I {} bash -c 'check_one "$1"' _ {}
echo "clang-tidy: ${#sources[@]} sources, no findings"
