#!/usr/bin/env bash
# A project that adds this tree and lets no warning pass builds, and its programs agree.
#   subproject_test.sh SOURCE_DIR WORK_DIR C_COMPILER CXX_COMPILER
set -euo pipefail
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
# Unoptimized, a folder at a time: quick to compile.
cmake -S "$source/tests/install/subproject" -B "$work/build" -G Ninja -DMOERT_SOURCE="$source" \
  -DCMAKE_C_COMPILER="$3" -DCMAKE_CXX_COMPILER="$4" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_UNITY_BUILD=ON >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" >"$work/build.log" 2>&1 || { tail -40 "$work/build.log"; exit 1; }
export XDG_CACHE_HOME=$work/cache
text=$("$work/build/from_cpp" "$source/examples/models/tiny-moe")
echo "$text"
[[ $text == "last layer: "* ]]
[ "$("$work/build/from_c" "$source/examples/models/tiny-moe")" = "$text" ]
