#!/usr/bin/env bash
# The plug-in built with the library shows its entry alone, and needs of libmoert the C ABI.
#   exports_test.sh [PLUGIN]
set -euo pipefail
if [ $# = 0 ]; then
  echo "skipped: no sources of llama.cpp (MOERT_LLAMA_CPP); the slow test hosts.llama_cpp brings them"
  exit 77
fi
shown=$(nm -D --defined-only "$1" | awk '$2 == "T" {print $3}')
[ "$shown" = ggml_backend_init ] || { echo "shows more or less than ggml_backend_init: $shown"; exit 1; }
nm -D --undefined-only "$1" | grep ' _ZNK\?5moert' && { echo "needs more of libmoert than its C ABI"; exit 1; }
nm -D --undefined-only "$1" | grep -q ' moert_layer_fetch' || { echo "does not use libmoert"; exit 1; }
