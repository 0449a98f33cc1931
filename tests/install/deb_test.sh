#!/usr/bin/env bash
# Debian packages of two copies of the tree, in folders of different names: the same bytes, multiarch
# paths, licence, notices and list of contents within, nothing of CUDA, and no compiler's warning.
# make-deb.sh fails on what lintian finds.
#   deb_test.sh SOURCE_DIR WORK_DIR [CMake arguments]
set -euo pipefail
source=$1 work=$2
shift 2
for tool in dpkg-deb dpkg-architecture cpack git; do
  command -v $tool >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
rm -rf "$work"
export SOURCE_DATE_EPOCH=1700000000
for copy in first "second copy/of it"; do
  mkdir -p "$work/$copy/source"
  git -C "$source" ls-files -z | tar -C "$source" --null --no-recursion -cf - -T - | tar -xf - -C "$work/$copy/source"
  "$work/$copy/source/cmake/make-deb.sh" "$work/$copy/source/build/deb" "$@" >"$work/$copy/log" 2>&1 ||
    { tail -40 "$work/$copy/log"; exit 1; }
  if grep "warning:" "$work/$copy/log"; then exit 1; fi
done
cd "$work"
status=0
for deb in first/source/build/deb/packages/*.deb; do
  cmp "$deb" "second copy/of it/source/build/deb/packages/$(basename "$deb")" || status=1
done
test $status = 0
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
for deb in first/source/build/deb/packages/*.deb; do
  name=$(dpkg-deb -f "$deb" Package)
  files=$(dpkg-deb -c "$deb" | awk '{print $6}')
  for file in copyright moert.spdx.json THIRD_PARTY_NOTICES.md; do
    grep -qx "./usr/share/doc/$name/$file" <<<"$files" || { echo "$name: no $file"; exit 1; }
  done
  if grep -E '^\./usr/lib/.*\.(so|so\.0|a|pc|cmake)$' <<<"$files" | grep -v "^./usr/lib/$triplet/"; then
    echo "$name: the files above are not in usr/lib/$triplet"
    exit 1
  fi
  if dpkg-deb -f "$deb" Depends | grep -iE 'cuda|nvidia'; then exit 1; fi
  # Without -q or -m: a reader that stops early breaks the pipe, which is a failure by pipefail.
  if dpkg-deb --fsys-tarfile "$deb" | grep -aF "$work" >/dev/null; then
    echo "$name names its build folder"
    exit 1
  fi
done
dpkg-deb -c first/source/build/deb/packages/libmoert0_*.deb | grep "./usr/lib/$triplet/libmoert.so.0" >/dev/null
sha256sum first/source/build/deb/packages/*.deb
