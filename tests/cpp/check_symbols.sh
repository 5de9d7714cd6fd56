#!/usr/bin/env bash
# liblightcc.so shows what headers mark with LIGHTCC_EXPORT: some functions of the engine, and nothing
# of the standard library, which the process may have in another version. Usage: check_symbols.sh LIBRARY
set -euo pipefail
shown=$(nm --dynamic --demangle --defined-only "$1" | cut -d' ' -f3-)
foreign=$(grep -v 'lightcc::' <<<"$shown" || true)
if [[ -n $foreign ]]; then
  printf '%s shows what is not of the engine:\n%s\n' "$1" "$foreign" >&2
  exit 1
fi
count=$(wc -l <<<"$shown")
if ((count > 60)); then
  printf '%s shows %d symbols, of 60 at most:\n%s\n' "$1" "$count" "$shown" >&2
  exit 1
fi
echo "$count symbols"
