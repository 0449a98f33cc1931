#!/usr/bin/env bash
# The source tarball: the same bytes twice, nothing of the laboratory, and a tree that configures, tests
# included.
#   source_test.sh SOURCE_DIR WORK_DIR
set -euo pipefail
source=$1 work=$2
command -v git >/dev/null && git -C "$source" rev-parse HEAD >/dev/null 2>&1 || { echo "skipped: no git clone"; exit 77; }
rm -rf "$work"
"$source/cmake/make-source.sh" "$work/one"
"$source/cmake/make-source.sh" "$work/two" >/dev/null
cmp "$work"/one/*.tar.gz "$work"/two/*.tar.gz
tar -xzf "$work"/one/*.tar.gz -C "$work"
tree=$(echo "$work"/libmoert-*/)
for left_out in tests/research tests/docs .ci; do
  [ ! -e "$tree/$left_out" ] || { echo "the tarball has $left_out"; exit 1; }
done
cmake -S "$tree" -B "$work/build" -DMOERT_CUDA=OFF -DMOERT_BUILD_TESTS=ON >"$work/log" 2>&1 ||
  { tail -20 "$work/log"; exit 1; }
[ $(stat -c %s "$work"/one/*.tar.gz) -lt 32000000 ] || { echo "the tarball is larger than 32 MB"; exit 1; }
