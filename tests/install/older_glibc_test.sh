#!/usr/bin/env bash
# cmake/glibc/link_folder.py: a program linked with it takes nothing newer than glibc 2.28 and works; one
# that needs a newer function does not link. Exit status 77: on a system it is not made for.
#   older_glibc_test.sh SOURCE_DIR WORK_DIR
set -euo pipefail
source=$1 work=$2
here=$source/tests/install
system=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
if [ "$(uname -m)" != x86_64 ] || ! printf '%s\n' 2.34 "$system" 2.36 | sort -CV; then
  echo "SKIPPED: releases are made on x86-64 with glibc 2.34 to 2.36, here is $(uname -m) with $system"
  exit 77
fi
command -v g++ >/dev/null || { echo "SKIPPED: no g++"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
cd "$work"
python3 "$source/cmake/glibc/link_folder.py" "folder of glibc" 2.28
link=("-Lfolder of glibc" -static-libstdc++)
link+=("-Wl,--gc-sections" "-Wl,--allow-shlib-undefined")

g++ -std=c++20 -O2 "$here/older_glibc.cc" -o program "${link[@]}"
newest=$(objdump -T program | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -1)
echo "newest symbols: $newest"
printf '%s\n' "$newest" GLIBC_2.28 | sort -CV || { echo "FAILED: newer than 2.28"; exit 1; }
printf '%s\n' constructor environment wait wake thread "exception in a thread" "thread-local destructor" \
  file destructor >expected
timeout 60 ./program >actual
diff expected actual

echo '#include <unistd.h>
int main() { return gettid() == 0; }' >newer.cc
! g++ newer.cc -o newer "${link[@]}" 2>errors || { echo "FAILED: gettid of glibc 2.30 was linked"; exit 1; }
grep "undefined reference to .gettid" errors
