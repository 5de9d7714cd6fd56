#!/usr/bin/env bash
# Runs every fuzz target for some seconds. Usage: run_fuzzers.sh [SECONDS, default 20]
#
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
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

run_one() {
  local folder=${1%/*} target=${1##*/}
  target=${target%.cpp}
  local parser=${target#fuzz_}
  local log="build/fuzz-corpus/$target.log"
  mkdir -p "build/fuzz-corpus/$parser"
  if ! "build/asan/$folder/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="tests/fuzz/findings/$parser-" "build/fuzz-corpus/$parser" \
    "$folder/corpus/$parser" >"$log" 2>&1; then
    echo "$target: FOUND SOMETHING (input in tests/fuzz/findings)"
    tail -n 40 "$log"
    return 1
  fi
  echo "$target: $(grep -a '^Done ' "$log" || tail -n 1 "$log")"
}
export -f run_one
export seconds

mkdir -p build/fuzz-corpus
printf '%s\n' "${sources[@]}" | xargs -P "$jobs" -I {} bash -c 'run_one {}'
echo "${#targets[@]} fuzz targets, $seconds s each, nothing found"
