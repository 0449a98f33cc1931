#!/usr/bin/env bash
# A Debian with nothing on it: install the packages, build a foreign program, run it. Needs root,
# debootstrap and a network, so it is not part of ctest.
#   clean_root.sh BUILD_DIR [ROOT_DIR]      an existing ROOT_DIR is used again
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
root=${2:-$(mktemp -d)/root}

(cd "$build" && cmake . >/dev/null && cpack -G DEB -B "$build/packages" >/dev/null)
if [ ! -x "$root/usr/bin/dpkg" ]; then
  debootstrap --variant=minbase bookworm "$root" >/dev/null
fi
chroot "$root" apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config >/dev/null
mkdir -p "$root/test"
cp "$build"/packages/libmoert0_*.deb "$build"/packages/libmoert-dev_*.deb \
  "$source"/examples/c_host/*.[ch] "$root/test/"
chroot "$root" sh -euc '
  cd /test
  ! dpkg -l | grep -E "libabsl|libfmt|libstdc..6-dev|nlohmann" || { echo "not a clean root"; exit 1; }
  dpkg -i libmoert0_*.deb libmoert-dev_*.deb >/dev/null
  gcc -std=c99 -pedantic-errors -Wall -Wextra -Werror main.c $(pkg-config --cflags --libs moert) -o host
  ./host
  dpkg -r libmoert-dev libmoert0 >/dev/null'
