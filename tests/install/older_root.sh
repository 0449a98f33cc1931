#!/usr/bin/env bash
# A wheel on Debian 11, of glibc 2.31: it is loaded, its tests run, and its tools. Needs root, debootstrap
# and a network, so it is not part of ctest.
#   older_root.sh WHEEL [ROOT_DIR]      an existing ROOT_DIR is used again
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
wheel=$(realpath "$1")
root=${2:-$(mktemp -d)/root}

if [ ! -x "$root/usr/bin/python3" ]; then
  debootstrap --variant=minbase --include=python3,python3-pip bullseye "$root" >/dev/null
fi
rm -rf "$root/test"
mkdir -p "$root/test/tests"
cp "$wheel" "$root/test"
cp -r "$source"/tests/{abi,data,python} "$root/test/tests"
cp -r "$source/examples" "$root/test"
# shellcheck disable=SC2016  # expanded in there; the mounts go with the shell
unshare --mount sh -euc 'mount --rbind /dev "$0/dev"; mount -t proc proc "$0/proc"; exec chroot "$0" sh -euc "$1"' \
  "$root" '
  cd /test
  getconf GNU_LIBC_VERSION
  python3 -m pip install --quiet --no-index --force-reinstall moert-*.whl
  export PATH=$PATH:/usr/local/bin
  cd tests
  python3 -m moert doctor
  python3 python/binding_test.py
  python3 ../examples/python/hello.py
  python3 -m moert run generate --model ../examples/models/tiny-moe --budget 25% --max-tokens 16 \
    --prompt "Question: 12 x 7?"'
