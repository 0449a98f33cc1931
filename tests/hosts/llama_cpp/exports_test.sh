#!/usr/bin/env bash
# The plug-in built with the library shows its entry alone, and needs of libmoert the C ABI.
#   exports_test.sh [PLUGIN]
set -euo pipefail
if [ $# = 0 ]; then
  echo "skipped: no sources of llama.cpp (MOERT_LLAMA_CPP); the slow test hosts.llama_cpp brings them"
  exit 77
fi
shown=$(nm -D --defined-only "$1" | awk '{print $3}')
[ "$shown" = ggml_backend_init ] || { echo "shows more or less than ggml_backend_init: $shown"; exit 1; }
used=$(nm -D --undefined-only "$1" | grep -oE '(moert_[a-z_]+|_ZNK?5moert[A-Za-z0-9_]+)' | sort -u)
case $used in
  *_Z*) echo "needs more of libmoert than its C ABI: $used"; exit 1 ;;
  *moert_layer_fetch*) ;;
  *) echo "does not use libmoert: $used"; exit 1 ;;
esac
