#!/usr/bin/env bash
# Compiles the installed C++ headers against the installed include folder, as a host that lets no warning
# pass.
#   headers_test.sh together|alone BUILD_DIR WORK_DIR COMPILER [SYSTEM_INCLUDE_DIR...]
# together: all of them, and a designated initializer of each struct. alone: every one by itself.
set -euo pipefail
part=$1 build=$2 work=$3 compiler=$4
shift 4
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/prefix" --component development >"$work/install.log"
include=$(dirname "$(find "$work/prefix" -path '*/moert/engine.h')")/..
system=()
for folder in "$@"; do  # /usr/include is searched as it is; named, its place in the order would change
  [ "$folder" = /usr/include ] || system+=(-isystem "$folder")
done

compile() {
  "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -I "$include" "${system[@]}" "$1"
}

if [ "$part" = together ]; then
  python3 "$(dirname "$0")/designated.py" "$include" >"$work/designated.cc"
  compile "$work/designated.cc"
  exit
fi
failed=0 headers=0
while read -r header; do
  headers=$((headers + 1))
  echo "#include \"$header\"" >"$work/alone.cc"
  compile "$work/alone.cc" || failed=$((failed + 1))
done < <(cd "$include" && find moert -name '*.h' | sort)
echo "$headers headers, $failed of them not usable alone"
[ "$headers" -gt 10 ] && [ "$failed" = 0 ]
