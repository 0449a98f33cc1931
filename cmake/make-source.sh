#!/usr/bin/env bash
# The source tarball of the last commit: everything but the laboratory (tests/research), as
# .gitattributes says. The same commit gives the same bytes.
#   cmake/make-source.sh FOLDER       writes FOLDER/libmoert-VERSION.tar.gz and prints its size
set -euo pipefail
if [ $# -ne 1 ]; then
  echo "usage: cmake/make-source.sh FOLDER" >&2
  exit 2
fi
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
version=$(git -C "$source" show HEAD:CMakeLists.txt | sed -n 's/^project(moert VERSION \([0-9.]*\).*/\1/p')
tarball=$1/libmoert-$version.tar.gz
git -C "$source" archive --format=tar --prefix="libmoert-$version/" HEAD | gzip -9n >"$tarball"
echo "$tarball: $(stat -c %s "$tarball") bytes"
