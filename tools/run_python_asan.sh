#!/usr/bin/env bash
# Runs Python tests of errors and lifetimes with engine and bindings under AddressSanitizer and
# UBSan: what a rank's death leaves in flight must neither be read nor written afterwards. The
# interpreter itself is not instrumented, so the runtime is preloaded, and leaks are not looked for
# (CPython keeps memory until the end on purpose; the C++ tests look for leaks).
# PYTHON: the interpreter, of an environment with what tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

# The engine as the C++ tests have it under these sanitizers, with bindings, before the installed one.
site=$PWD/build/asan/site
cmake --preset asan -DLIGHTCC_PYTHON=ON -DPython_EXECUTABLE="$PYTHON" \
  -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" >/dev/null
rm -rf "$site"
LIGHTCC_BUILD_DIR=$PWD/build/asan LIGHTCC_HARP=0 "$PYTHON" -m pip install --quiet \
  --disable-pip-version-check --no-build-isolation --no-deps --target "$site" .
export PYTHONPATH=$site

mkdir -p build/elsewhere build/reports
cd build/elsewhere
# libstdc++ too: the sanitizer looks for its exception functions when the program starts.
LD_PRELOAD="$(clang++-19 -print-file-name=libclang_rt.asan-$(uname -m).so) $(gcc -print-file-name=libstdc++.so.6)"
export LD_PRELOAD
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export HOROVOD_START_TIMEOUT=120
# One case for each way in which memory may be left to others: errors, deaths, forks.
chosen=()
for test in \
  test_agreement.py::test_ranks_agree_or_are_told_and_wait_for_one_another \
  test_agreement.py::test_shutdown_of_one_rank_ends_what_others_wait_for \
  test_failures.py::test_death_during_collectives_reaches_every_rank \
  test_failures.py::test_tensors_may_be_freed_right_after_an_error \
  test_failures.py::test_survivors_make_a_new_world_in_the_same_process \
  test_fork.py::test_forked_child_is_refused_at_once_and_the_parent_goes_on \
  test_fork.py::test_children_forked_before_init_and_after_shutdown_can_be_the_rank; do
  chosen+=("../../tests/python/parallel/$test")
done
exec "$PYTHON" -m pytest -q -c ../../pyproject.toml --rootdir ../.. \
  --junitxml ../reports/python-asan.xml "$@" "${chosen[@]}"
