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
# The files of a folder are analysed as one, like a unity build's; cmake/Unity.cmake lists those that stay alone.
alone=$(sed -n '/^set(MOERT_UNITY_ALONE/,/)/p' cmake/Unity.cmake | tr -d ')' | tr ' ' '\n' | grep '/' | paste -sd'|')
units=$(awk -v alone="^($alone)(/|\$)" '{
  folder = $0; sub("/[^/]*$", "", folder)
  key = ($0 ~ alone || $0 ~ /_(avx2|avx512|amx|vnni|cuda)/ || folder ~ /cuda/) ? $0 : folder
  files[key] = files[key] " " $0
} END { for (key in files) print files[key] }' <<<"$sources" | sort)
checked=0
while read -r unit; do
  case $unit in
    lib/exec/cuda/* | lib/offline/cuda/*) echo '#include <cuda_runtime_api.h>' |
      "$clang" "${flags[@]}" -x c++ -fsyntax-only - 2>/dev/null || continue ;;
  esac
  # shellcheck disable=SC2086  # a list of files
  printf '#include "%s"\n' $unit |
    "$clang" -x c++ -std=c++20 -fsyntax-only -Wno-everything -Wthread-safety -Werror=thread-safety-analysis \
      -Werror=thread-safety-attributes -Werror=thread-safety-precise -Werror=thread-safety-reference \
      -Iinclude -Ilib -I. -Icapi/include -Icapi/src "${flags[@]}" - || failed=1
  checked=$((checked + $(wc -w <<<"$unit")))
done <<<"$units"
echo "$checked sources checked"
[ "$checked" -gt 0 ] || failed=1
exit $failed
