#!/usr/bin/env bash
# A first hour with a checkpoint as transformers 5 saves it, of Qwen3-30B-A3B's form scaled down, within a
# limit of memory: what a user types, and what comes. docs/guide/first-model.md has a figure of it.
#   first_hour.sh BIN_DIR SOURCE_DIR WORK_DIR [make_checkpoint.py's flags]
set -euo pipefail
bin=$(cd "$1" && pwd) source=$(cd "$2" && pwd) work=$3
shift 3
command -v python3 >/dev/null || { echo "SKIPPED: no python3"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
python3 "$source/tests/slow/make_checkpoint.py" "$work/model" "$@"
head -c 24000 "$source/tests/data/eval/wikitext2.txt" >"$work/text.txt"
cd "$work"
export PATH=$bin:$PATH XDG_CACHE_HOME=$work/cache
limit=${LIMIT_KIB:-700000}
ulimit -v "$limit"

step() {  # command...: shown as typed, then run
  echo "\$ $*"
  "$@"
  echo
}
step moert-run doctor --model model --seconds 0.2
step moert-pack info model --budget 64M
step moert-run generate --model model --budget 64M --prompt "The city" --max-tokens 8
step moert-run generate --model model --as w4a16_g128 --budget 64M --prompt "The city" --max-tokens 8
step moert-run chat --model model --as w4a16_g128 --message "Who are you?" --max-tokens 8 --quiet
step moert-run ppl --model model --as w4a16_g128 --tokens text.txt --window 128 --limit 1024
step moert-pack calibrate --model model --tokens text.txt --out calibration --schemes w4a16_g128,w2a16_g64_asym \
  --method rtn --calibration-tokens 512 --window 128 --probe-tokens 0
step moert-pack allocate --calibration calibration --bits 3.5 --loss relative --solver lagrangian --out plan
step moert-pack quantize --model model --plan plan --out pack
step moert-run chat --model model --experts pack --strategy resident --message "And now?" --max-tokens 8 --quiet

# A fault would be seen here: no second copy of the experts, and files where they belong.
test -s calibration && test -s plan && test -s pack/moert.json
experts=$(du -s --block-size=1 model | cut -f1)
cached=$(du -s --block-size=1 cache | cut -f1)
if [ "$cached" -gt $((experts / 2)) ]; then
  echo "the cache holds $cached bytes of a checkpoint of $experts"
  exit 1
fi
echo "done within $limit KiB of address space"
