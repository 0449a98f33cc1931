#!/usr/bin/env bash
# Clang's thread safety analysis over every source of the library that uses a mutex. Fails too where
# one is used without base/mutex.h, whose attributes the analysis needs. Exits 77 without clang.
# Usage: check_thread_safety.sh SOURCE_DIR [include flags...]
set -u
root=$1
shift
flags=()
for flag in "$@"; do [ -n "$flag" ] && flags+=("$flag"); done
clang=${CLANGXX:-clang++}
command -v "$clang" >/dev/null || { echo "no $clang: skipped"; exit 77; }
cd "$root" || exit 1

failed=0
bare=$(grep -rlE 'std::(shared_)?mutex|std::(lock_guard|unique_lock|shared_lock|scoped_lock)|std::condition_variable' \
  --include=*.h --include=*.cc include lib kernels capi | grep -v '^lib/base/mutex.h$')
if [ -n "$bare" ]; then
  echo "without thread annotations, use base/mutex.h:" $bare
  failed=1
fi

# Sources that include base/mutex.h, or a header of ours that does.
headers=$(grep -rl '"base/mutex.h"' --include=*.h lib capi | sed -E 's#^(lib|capi/src)/##')
pattern=$(printf '"%s"\n' base/mutex.h $headers | paste -sd'|')
sources=$(grep -rlE "#include ($pattern)" --include=*.cc lib capi | sort)
checked=0
for source in $sources; do
  case $source in
    lib/exec/cuda/* | lib/offline/cuda/*) echo '#include <cuda_runtime_api.h>' |
      "$clang" "${flags[@]}" -x c++ -fsyntax-only - 2>/dev/null || continue ;;
  esac
  "$clang" -std=c++20 -fsyntax-only -Wno-everything -Wthread-safety -Werror=thread-safety-analysis \
    -Werror=thread-safety-attributes -Werror=thread-safety-precise -Werror=thread-safety-reference \
    -Iinclude -Ilib -I. -Icapi/include "${flags[@]}" "$source" || failed=1
  checked=$((checked + 1))
done
echo "$checked sources checked"
[ "$checked" -gt 0 ] || failed=1
exit $failed
