#!/usr/bin/env bash
# Runs every fuzz target for some seconds. Usage: run_fuzzers.sh [SECONDS, default 20]
#
# CHECK_CHANGED=1: a target whose side (engine or HARP) did not change gets a quarter of the time.
# FUZZ_SEED is libFuzzer's; without, it is made of the commit, so that it moves and can be replayed.
# New inputs go to build/fuzz-corpus, which grows from run to run; the committed corpus is only read.
# An input that breaks something is kept in tests/fuzz/findings. HARP's targets are in
# harp_plugin/tests/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
jobs=${JOBS:-$(nproc)}

cmake --preset asan
mapfile -t sources < <(ls tests/fuzz/fuzz_*.cpp harp_plugin/tests/fuzz/fuzz_*.cpp)
targets=("${sources[@]##*/}")
targets=("${targets[@]%.cpp}")
cmake --build --preset asan --parallel "$jobs" --target "${targets[@]}"
mkdir -p tests/fuzz/findings
seed=${FUZZ_SEED:-$((16#$(git rev-parse --short=7 HEAD | cut -c 1-7)))}
echo "fuzz: FUZZ_SEED=$seed"
changed=all
if [[ ${CHECK_CHANGED:-0} == 1 ]]; then
  changed=$(tools/changed_files.sh) || changed=all
fi
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

run_one() {
  local folder=${1%/*} target=${1##*/}
  target=${target%.cpp}
  local parser=${target#fuzz_}
  local log="build/fuzz-corpus/$target.log"
  mkdir -p "build/fuzz-corpus/$parser"
  local side='^(csrc|tests/fuzz|cmake)/|^CMake' time=$seconds
  [[ $folder != harp_plugin/* ]] || side='^(harp_plugin|cmake)/|^CMake'
  if [[ $changed != all ]] && ! grep -qE "$side" <<<"$changed"; then
    time=$(((seconds + 3) / 4))
  fi
  if ! "build/asan/$folder/$target" -seed="$seed" -max_total_time="$time" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="tests/fuzz/findings/$parser-" "build/fuzz-corpus/$parser" \
    "$folder/corpus/$parser" >"$log" 2>&1; then
    echo "$target: FOUND SOMETHING (input in tests/fuzz/findings)"
    tail -n 40 "$log"
    return 1
  fi
  echo "$target, $time s: $(grep -a '^Done ' "$log" || tail -n 1 "$log")"
}
export -f run_one
export seconds seed changed

mkdir -p build/fuzz-corpus
printf '%s\n' "${sources[@]}" | xargs -P "$jobs" -I {} bash -c 'run_one {}'
echo "${#targets[@]} fuzz targets, at most $seconds s each, nothing found"
