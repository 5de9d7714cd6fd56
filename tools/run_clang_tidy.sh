#!/usr/bin/env bash
# clang-tidy over the engine, its bindings and HARP. LINT_CHANGED=1: only sources that differ from the
# main branch or are not committed yet, and those that include a header that does.
# CHECK_CHANGED=1: those, and a fifth of the rest, which moves with CHECK_SEED. clang-analyzer, which
# takes four fifths of the time, then reads ANALYSED of them, and these move with the seed, too.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

linted=('csrc/*.cpp' 'harp_plugin/src/*.cpp' 'harp_plugin/tools/harp_perf/*.cpp')
mapfile -t sources < <(git ls-files --cached --others --exclude-standard "${linted[@]}")
if [[ ${LINT_CHANGED:-0} == 1 || ${CHECK_CHANGED:-0} == 1 ]]; then
  if ! changed=$(tools/changed_files.sh); then
    changed=$(printf '%s\n' "${sources[@]}")
  elif grep -qxE '\.clang-tidy|tools/requirements-lint\.txt' <<<"$changed"; then
    changed=$(printf '%s\n' "${sources[@]}")
  fi
  # By the last two parts of a header's path, as it is included.
  headers=$(grep '\.hpp$' <<<"$changed" | grep -oE '[^/]+/[^/]+$' | sort -u || true)
  chosen=()
  for source in "${sources[@]}"; do
    read -r sum _ < <(cksum <<<"$source")
    if grep -qxF "$source" <<<"$changed" ||
      { [[ -n $headers ]] && grep -qF "$headers" "$source"; } ||
      { [[ ${CHECK_CHANGED:-0} == 1 ]] && (((sum + ${CHECK_SEED:-0}) % 5 == 0)); }; then
      chosen+=("$source")
    fi
  done
  sources=("${chosen[@]}")
fi
if ! pkg-config --exists libdpdk 2>/dev/null; then
  echo "clang-tidy: harp_plugin/src/dpdk is left out, as libdpdk is not here"
  mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v '^harp_plugin/src/dpdk/')
fi
if ((${#sources[@]} == 0)); then
  echo "clang-tidy: no source changed"
  exit 0
fi

analysed=$(printf '%s\n' "${sources[@]}")
if [[ ${CHECK_CHANGED:-0} == 1 ]]; then
  analysed=$(while read -r source; do
    echo "$(cksum <<<"${CHECK_SEED:-0} $source") $source"
  done <<<"$analysed" | sort -n | sed -n "1,${ANALYSED:-25}p" | cut -d ' ' -f 3-)
fi

check_one() {
  local output checks=()
  grep -qxF "$1" <<<"$analysed" || checks=('--checks=-clang-analyzer-*')
  if ! output=$(clang-tidy -p build/lint --quiet "${checks[@]}" "$1" 2>&1); then
    grep -v -e '^[0-9]* warnings\? generated' -e '^Suppressed ' <<<"$output"
    return 1
  fi
}
export -f check_one
export analysed

printf '%s\0' "${sources[@]}" | xargs -0 -P "$jobs" -I {} bash -c 'check_one "$1"' _ {}
echo "clang-tidy: ${#sources[@]} sources, $(wc -l <<<"$analysed") by its analyzer, no findings"
