#!/usr/bin/env bash
# Everything a release consists of, of the last commit's date: source tarball, Debian packages, wheels and
# llama.cpp plug-ins. Prints sizes, SHA-256, and the glibc that each binary needs. The same tree and tools
# give the same bytes.
#   cmake/make-release.sh FOLDER [source|plugins|deb|wheel|cuda-wheel]...    without a part: all but cuda-wheel
# FOLDER/files has the result. Wheels and plug-ins are linked for glibc 2.28 and checked for it; packages for
# this Debian, as their dependencies are. auditwheel, where it is installed, names wheels by the glibc;
# without it they keep linux_x86_64, which PyPI does not take.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: cmake/make-release.sh FOLDER [source|plugins|deb|wheel|cuda-wheel]..." >&2
  exit 2
fi
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1/files"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- source plugins deb wheel
: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
map="\"-ffile-prefix-map=$source=.\""  # quoted for the shell of the build, as in make-deb.sh
glibc=2.28
python3 "$source/cmake/glibc/link_folder.py" "$out/glibc" $glibc
# The system's own shared libraries take newer symbols, and may.
export LDFLAGS="-L\"$out/glibc\" -Wl,--allow-shlib-undefined"

# GPUs on which a wheel with CUDA starts without a compiler at work: compute capability 8.0, 8.6 and 8.9, 9.0, 12.0.
# Others compile for minutes, once.
architectures='80-real;90a-real;120-real;90-virtual'

# wheel FOLDER CUDA
wheel() {
  rm -rf "${out:?}/$1"
  python3 -m pip wheel --verbose --no-deps --wheel-dir "$out/$1" "$source" -C "cmake.define.MOERT_CUDA=$2" \
    -C "cmake.define.MOERT_CUDA_ARCHITECTURES=$architectures" \
    -C cmake.define.CMAKE_UNITY_BUILD=ON -C "cmake.define.CMAKE_C_FLAGS=$map" \
    -C "cmake.define.CMAKE_CXX_FLAGS=$map"
  if command -v auditwheel >/dev/null; then
    auditwheel repair --only-plat --plat "manylinux_${glibc/./_}_x86_64" --wheel-dir "$out/$1" \
      "$out/$1"/moert-*-linux_x86_64.whl
    rm -f "$out/$1"/moert-*-linux_x86_64.whl
  else
    echo "make-release: auditwheel is not installed, the wheel keeps the name linux_x86_64"
  fi
  mkdir -p "$out/files/$1"
  mv "$out/$1"/moert-*.whl "$out/files/$1"
}

# The shared library with its headers in $out/prefix.
library() {
  cmake -S "$source" -B "$out/library" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMOERT_CUDA=OFF \
    -DMOERT_BUILD_TESTS=OFF -DMOERT_BUILD_EXAMPLES=OFF -DMOERT_BUILD_OFFLINE=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_C_FLAGS="$map" -DCMAKE_CXX_FLAGS="$map"
  cmake --build "$out/library"
  rm -rf "$out/prefix"
  for component in runtime development; do
    cmake --install "$out/library" --prefix "$out/prefix" --component $component >/dev/null
  done
}

for part in "$@"; do
  case $part in
    source) "$source/cmake/make-source.sh" "$out/files" ;;
    wheel) wheel wheel OFF ;;
    cuda-wheel) wheel cuda-wheel ON ;;
    deb)
      env -u LDFLAGS "$source/cmake/make-deb.sh" "$out/deb" -DCMAKE_UNITY_BUILD=ON
      cp "$out"/deb/packages/*.deb "$out/files" ;;
    plugins)
      library
      "$source/cmake/make-plugins.sh" "$out/plugins" "$out/prefix"
      for folder in "$out"/plugins/ggml-*; do
        tar -C "$out/plugins" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
          -c "$(basename "$folder")" | gzip -9n >"$out/files/moert-$(basename "$folder").tar.gz"
      done ;;
    *)
      echo "make-release: no part $part" >&2
      exit 2 ;;
  esac
done

# The newest symbol version of glibc that a file takes. A newer one than is promised fails.
glibc_of() { objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1; }
rm -rf "$out/unpacked"
for wheel in "$out"/files/*wheel/*.whl; do
  [ ! -e "$wheel" ] || python3 -m zipfile -e "$wheel" "$out/unpacked/$(basename "$(dirname "$wheel")")"
done
newer=0
for binary in "$out"/prefix/lib*/libmoert.so.?.* "$out"/plugins/ggml-*/*.so* \
              "$out"/unpacked/*/moert/libmoert.so "$out"/unpacked/*/moert/bin/moert-*; do
  [ -e "$binary" ] || continue
  needs=$(glibc_of "$binary")
  echo "$(realpath --relative-to="$out" "$binary") needs $needs"
  printf '%s\n' "$needs" "GLIBC_$glibc" | sort -CV || newer=1
done
rm -rf "$out/unpacked"
[ $newer = 0 ] || { echo "make-release: a binary needs a newer glibc than $glibc" >&2; exit 1; }
cd "$out/files"
find . -type f -printf '%P: %s bytes\n' | sort
find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum
