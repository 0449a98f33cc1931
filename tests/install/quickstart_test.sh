#!/usr/bin/env bash
# docs/guide/embed.md, tried as it stands: installs, then runs every block marked `<!-- run -->`, or
# `<!-- run:TOOL -->` where the tool is there, in an empty folder. Each language has to print the same.
#   quickstart_test.sh BUILD_DIR SOURCE_DIR WORK_DIR
set -euo pipefail
build=$1
export SRC=$2 PREFIX=$3/prefix XDG_CACHE_HOME=$3/cache
rm -rf "$3"
mkdir -p "$3/empty"
for part in runtime development; do
  cmake --install "$build" --prefix "$PREFIX" --component $part >/dev/null
done
export GOPROXY=off GOFLAGS=-mod=mod CARGO_NET_OFFLINE=true GIT_CONFIG_GLOBAL=/dev/null
python3() { command "${MOERT_PYTHON:-python3}" "$@"; }

blocks=$(awk '/^<!-- run/ { tool = $2; sub("run:?", "", tool); wait = 1; next }
              wait && /^```sh/ { wait = 0; n++; on = 1; print "#TOOL " tool; next }
              on && /^```/ { on = 0; print "#END"; next }
              on { print }' "$SRC/docs/guide/embed.md")
cd "$3/empty"
ran=0 block='' tool=''
while IFS= read -r line; do
  case $line in
    '#TOOL '* | '#TOOL') tool=${line#'#TOOL'} tool=${tool# } block='' ;;
    '#END')
      if [ -n "$tool" ] && [ "$tool" != '-->' ] && ! command -v "$tool" >/dev/null; then
        echo "SKIPPED block: $tool is not installed"
        continue
      fi
      eval "$block" >"$3/out.$ran" 2>&1 || { cat "$3/out.$ran"; echo "failed: $block"; exit 1; }
      cat "$3/out.$ran"
      ran=$((ran + 1)) ;;
    *) block+=$line$'\n' ;;
  esac
done <<<"$blocks"

# The first number of each language's line, to three digits.
numbers=$(grep -h 'last layer' "$3"/out.* | sed 's/.*last layer: *\[*//; s/[ ,].*//' |
          awk '{ printf "%.2e\n", $1 }' | sort -u)
languages=$(grep -l 'last layer' "$3"/out.* | wc -l)
if [ "$(wc -l <<<"$numbers")" != 1 ] || [ "$languages" -lt 2 ]; then
  echo "they differ: $numbers"
  exit 1
fi
echo "$languages languages print the same"
