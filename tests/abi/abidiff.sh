#!/usr/bin/env bash
# Compares libmoert.so with its ABI baseline (libabigail), or renews that. Exit status 77: libabigail is
# not installed, or the library has no debug information.
#   abidiff.sh check|renew LIBRARY HEADERS BASELINE
set -euo pipefail
action=$1 library=$2 headers=$3 baseline=$4
if ! command -v abidw >/dev/null || ! command -v abidiff >/dev/null; then
  echo "SKIPPED: libabigail is not installed (Debian: apt install abigail-tools)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Public types and exported functions only; nothing of this machine or this build.
abidw --headers-dir "$headers" --drop-private-types --exported-interfaces-only --no-show-locs \
      --no-corpus-path --no-comp-dir-path --no-elf-needed --no-architecture --type-id-style hash \
      --out-file "$work/now.abi" "$library"
sed -i -E "s# path='[^']*/([^'/]*)'# path='\1'#" "$work/now.abi"
if ! grep -q "class-decl name='moert_tensor'" "$work/now.abi"; then
  echo "SKIPPED: $library has no debug information"
  exit 77
fi
if [ "$action" = renew ]; then
  cp "$work/now.abi" "$baseline"
  echo "wrote $baseline"
  exit 0
fi
if ! abidiff --harmless "$baseline" "$work/now.abi"; then
  echo "The ABI differs from tests/abi/baseline.abi. Is that meant? docs/reference/c-abi.md says what may" \
       "change when. Then: cmake --build BUILD --target abi_baseline"
  exit 1
fi
echo "the ABI is that of the baseline"
