#!/usr/bin/env bash
# Installs into an empty folder, moves it, and builds two foreign projects against it.
#   install_test.sh BUILD_DIR SOURCE_DIR WORK_DIR CONFIG
set -euo pipefail
build=$1 source=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
for component in runtime development; do
  cmake --install "$build" --prefix "$work/first" --component "$component" >"$work/install.log"
done
mv "$work/first" "$work/prefix"  # nothing may remember where it was installed
prefix=$work/prefix
export XDG_CACHE_HOME=$work/cache
model=$source/examples/models/tiny-moe

if grep -rIl --include=*.cmake --include=*.pc -e "$source" -e "$build" "$prefix"; then
  echo "the files above name the build tree"
  exit 1
fi
for file in LICENSE THIRD_PARTY_NOTICES.md moert.spdx.json; do
  test -s "$(find "$prefix/share/doc" -name "$file")" || { echo "$file is not installed"; exit 1; }
done
if command -v python3 >/dev/null; then
  python3 -m json.tool "$(find "$prefix/share/doc" -name moert.spdx.json)" >/dev/null
fi
test -L "$(find "$prefix" -name libmoert.so)"
test -L "$(find "$prefix" -name libmoert.so.0)"

cmake -S "$source/tests/install/cmake_project" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
  -DPROGRAMS="$source/examples/readme" >"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }
cmake --build "$work/cmake" >>"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }

pkgconfig=$(dirname "$(find "$prefix" -name moert.pc)")
libdir=$(dirname "$pkgconfig")
mkdir "$work/make"
PKG_CONFIG_PATH=$pkgconfig make -C "$work/make" -f "$source/tests/install/make_project/Makefile" \
  PROGRAMS="$source/examples/readme" >"$work/make.log" 2>&1 || { cat "$work/make.log"; exit 1; }

expected=$("$work/cmake/from_c" "$model")
echo "$expected"
[[ $expected == "last layer: "* ]]
for program in "$work/cmake/from_cpp" "$work/make/from_c" "$work/make/from_c_static" \
  "$work/make/from_cpp"; do
  text=$(LD_LIBRARY_PATH=$libdir "$program" "$model")
  if [ "$text" != "$expected" ]; then
    echo "$program: $text"
    exit 1
  fi
done

# The component offline, where it was built.
if [ -f "$(dirname "$(find "$prefix" -name moertConfig.cmake)")/moertOfflineTargets.cmake" ]; then
  PKG_CONFIG_PATH=$pkgconfig make -C "$work/make" -f "$source/tests/install/make_project/Makefile" \
    OFFLINE="$source/tests/install/cmake_project/offline.cc" from_offline >"$work/make.log" 2>&1 ||
    { cat "$work/make.log"; exit 1; }
  for program in cmake make; do
    text=$("$work/$program/from_offline" "$model" "$work/pack-$program")
    echo "$text"
    [[ $text == "bf16: 16"*"w4a16_g128: 4."* ]]
  done
fi
