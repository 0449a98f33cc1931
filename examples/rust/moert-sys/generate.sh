#!/usr/bin/env bash
# Makes src/lib.rs, or the file named, from capi/include/moert.h. Needs bindgen 0.60 (Debian 12: apt
# install bindgen).
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-src/lib.rs}
{
  echo '//! Bindings of moert.h, made by `examples/rust/moert-sys/generate.sh`; checked in so that no build'
  echo '//! needs bindgen.'
  echo '#![allow(non_camel_case_types, non_upper_case_globals, clippy::all)]'
  echo
  bindgen --allowlist-function 'moert_.*' --allowlist-type 'moert_.*' --allowlist-var 'MOERT_.*' \
    --no-prepend-enum-name --no-layout-tests --size_t-is-usize --use-core --no-doc-comments \
    ../../../capi/include/moert.h -- -I../../../capi/include | grep -v -e 'automatically generated' | cat -s
} > "$out"
