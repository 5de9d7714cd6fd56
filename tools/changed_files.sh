#!/usr/bin/env bash
# Prints the files that differ from the main branch, committed or not. On the main branch itself it looks
# at the last 20 commits. CHANGED_SINCE names another commit. Fails where history does not say.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${CHANGED_SINCE:-}
if [[ -z $base ]]; then
  for main in origin/main main; do
    base=$(git merge-base HEAD "$main" 2>/dev/null) && break
  done
  if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then
    base=$(git rev-parse --verify --quiet HEAD~20)
  fi
fi
{
  git diff --name-only --diff-filter=d "$base" --
  git ls-files --others --exclude-standard
} | sort -u
