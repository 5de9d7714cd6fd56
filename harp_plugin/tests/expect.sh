# For scripts that check what a program prints; to be sourced. `out` is its last output.
out=$(mktemp)
fail() {
  echo "$*; what it printed:" >&2
  cat "$out" >&2
  exit 1
}
# expect STATUS TEXT command...: exits with STATUS and prints TEXT, within EXPECT_SECONDS (60).
expect() {
  local status=0 wanted=$1 text=$2
  shift 2
  timeout "${EXPECT_SECONDS:-60}" "$@" >"$out" 2>&1 || status=$?
  [[ $status == "$wanted" ]] || fail "$* exited with $status, not $wanted"
  grep -qF -- "$text" "$out" || fail "$* did not print '$text'"
}
