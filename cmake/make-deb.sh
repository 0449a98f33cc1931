#!/usr/bin/env bash
# Debian packages of this tree, without CUDA: multiarch paths, copyright and changelog, dates of the
# newest entry or SOURCE_DATE_EPOCH, so that the same tree and tools give the same bytes. Runs lintian
# where it is installed; a finding fails.
#   cmake/make-deb.sh BUILD_FOLDER [CMake arguments]
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: cmake/make-deb.sh BUILD_FOLDER [CMake arguments]" >&2
  exit 2
fi
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
build=$(cd "$1" && pwd)
shift
for tool in dpkg-architecture dpkg-deb gzip cpack; do
  command -v $tool >/dev/null || { echo "make-deb: $tool is missing (Debian: dpkg-dev)" >&2; exit 1; }
done
: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022

version=$(sed -n 's/^project(moert VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
maintainer="libmoert maintainers <moert@users.noreply.github.com>"
docs=$build/debian-docs
rm -rf "$docs"
mkdir -p "$docs"
{
  echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
  echo "Upstream-Name: libmoert"
  echo
  echo "Files: *"
  echo "Copyright: 2026 the libmoert authors"
  echo "License: Apache-2.0"
  echo " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0."
  echo " What third parties wrote is listed in THIRD_PARTY_NOTICES.md beside this file."
} >"$docs/copyright"
printf 'moert (%s-1) unstable; urgency=medium\n\n  * Release %s.\n\n -- %s  %s\n' \
  "$version" "$version" "$maintainer" "$(date -R -d "@$SOURCE_DATE_EPOCH")" |
  gzip -9n >"$docs/changelog.Debian.gz"
echo "activate-noawait ldconfig" >"$docs/triggers"
echo "libmoert 0 libmoert0 (>= $version)" >"$docs/shlibs"

map="\"-ffile-prefix-map=$source=.\""  # quoted for the shell of the build: folders may have spaces
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMOERT_CUDA=OFF \
  -DMOERT_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/usr \
  -DCMAKE_INSTALL_LIBDIR="lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" \
  -DCMAKE_C_FLAGS="$map" -DCMAKE_CXX_FLAGS="$map" \
  -DMOERT_DEBIAN_DOCS="$docs" "$@"
cmake --build "$build"
(cd "$build" && rm -rf packages && cpack -G DEB -B packages)
rm -rf "$build/packages/_CPack_Packages"
# CPack adds scripts that call ldconfig to every library; the trigger stands for them.
for deb in "$build"/packages/libmoert0_*.deb; do
  rm -rf "$build/unpacked"
  dpkg-deb --raw-extract "$deb" "$build/unpacked"
  rm "$build/unpacked/DEBIAN/postinst" "$build/unpacked/DEBIAN/postrm"
  dpkg-deb --root-owner-group --build "$build/unpacked" "$deb" >/dev/null
done
rm -rf "$build/unpacked"
stat -c "%n: %s bytes" "$build"/packages/*.deb
sha256sum "$build"/packages/*.deb
if command -v lintian >/dev/null; then
  # Nothing was uploaded to Debian: no bug asks for it.
  lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs \
    "$build"/packages/*.deb
else
  echo "make-deb: lintian is not installed, the packages were not checked"
fi
