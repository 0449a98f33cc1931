#!/usr/bin/env bash
# llama.cpp's own test of its architectures with the plug-in loaded; and the models that it makes,
# one an architecture, give the logits that they have without it.
#   archs_test.sh LLAMA_DIR PLUGIN WORK_DIR
set -euo pipefail
bin=$1/build/bin plugin=$2 work=$3
export OMP_WAIT_POLICY=passive
cd "$work"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# Named, as experts that all fit are llama.cpp's otherwise.
with() { env GGML_BACKEND_PATH="$plugin" MOERT_BUDGET=60% MOERT_STRATEGY=on-demand MOERT_STATS=1 "$@"; }

with "$bin/test-llama-archs" -b MOERT -s 1 >archs.log 2>&1 || fail "test-llama-archs: $(tail -5 archs.log)"
[ "$(grep -ac 'OK' archs.log)" -ge 100 ] || fail "test-llama-archs: $(tail -1 archs.log)"  # its last lines may be lost

rm -rf archs && mkdir archs
"$bin/test-llama-archs" -s 1 -o archs >save.log 2>&1 || fail "models are not made: $(tail -3 save.log)"
count=0
for model in archs/*-moe.gguf; do
  grep -aq ffn_down_exps "$model" || continue
  "$bin/host" logits "$model" stock.logits >stock.log 2>&1 || { echo "stock does not run $model"; continue; }
  rm -f with.logits
  with "$bin/host" logits "$model" with.logits >with.log 2>&1 || { fail "$model: $(tail -1 with.log)"; continue; }
  cmp -s stock.logits with.logits || fail "$model: other logits"
  grep -q '^moert:' with.log || continue  # llama.cpp multiplies none of them
  grep -Eq ' [1-9][0-9]* loads' with.log || fail "$model: no expert came by libmoert: $(tail -2 with.log)"
  count=$((count + 1))
done
[ "$count" -ge 40 ] || fail "only $count architectures ran"
[ "$failures" = 0 ] && echo "logits of $count architectures with the plug-in are those without it"
exit "$((failures > 0))"
