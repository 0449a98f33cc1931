#!/usr/bin/env bash
# Compiles every installed C++ header by itself against the installed include folder, as a host that
# lets no warning pass, and designated initializers of all their structs.
#   headers_test.sh BUILD_DIR WORK_DIR COMPILER [SYSTEM_INCLUDE_DIR...]
set -euo pipefail
build=$1 work=$2 compiler=$3
shift 3
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

failed=0 headers=0
while read -r header; do
  headers=$((headers + 1))
  echo "#include \"$header\"" >"$work/alone.cc"
  compile "$work/alone.cc" || failed=$((failed + 1))
done < <(cd "$include" && find moert -name '*.h' | sort)
echo "$headers headers, $failed of them not usable alone"
[ "$headers" -gt 10 ] && [ "$failed" = 0 ]
python3 "$(dirname "$0")/designated.py" "$include" >"$work/designated.cc"
compile "$work/designated.cc"
