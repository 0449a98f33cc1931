#!/usr/bin/env bash
# The plug-in in an unmodified llama.cpp: logits with it are those without it, bit by bit, for every
# layout, format and budget.
#   plugin_test.sh BUILD_DIR SOURCE_DIR WORK_DIR
set -euo pipefail
build=$1 source=$2 work=$3
here=$source/tests/hosts/llama_cpp
export OMP_WAIT_POLICY=passive  # threads that wait leave the processor to others
llama=${MOERT_LLAMA_CPP:-${XDG_CACHE_HOME:-$HOME/.cache}/moert-tests/llama.cpp}
unset MOERT_LLAMA_CPP  # is no variable of the plug-in
"$here/get_llama_cpp.sh" "$llama"
host=$llama/build/bin/host
rm -rf "$work"
mkdir -p "$work"
cd "$work"

# As a user does: against an installed libmoert.
for component in runtime development; do
  cmake --install "$build" --prefix "$work/prefix" --component "$component" >install.log
done
logged() { "$@" >build.log 2>&1 || { tail -30 build.log; exit 1; }; }
logged cmake -S "$source/examples/ggml_backend" -B plugin -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DLLAMA_CPP="$llama/src"
logged cmake --build plugin --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
plugin=$work/plugin/libggml-moert.so

failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# with BUDGET MODEL [MODE ...]: the plug-in's logits, and what it says.
with() {
  local budget=$1 model=$2
  shift 2
  # Named, as experts that all fit are llama.cpp's otherwise.
  env GGML_BACKEND_PATH="$plugin" MOERT_BUDGET="$budget" MOERT_STATS=1 \
    MOERT_STRATEGY="${MOERT_STRATEGY:-on-demand}" "$host" logits "$model" with.logits "$@" \
    >with.log 2>&1
}
# same BUDGET MODEL STOCK [MODE ...]
same() {
  local budget=$1 model=$2 stock=$3
  shift 3
  rm -f with.logits
  with "$budget" "$model" "$@" || { fail "$model $budget $*: $(tail -1 with.log)"; return; }
  cmp -s "$stock" with.logits || { fail "$model $budget $*: other logits"; return; }
  grep -Eq ' [1-9][0-9]* loads' with.log || fail "$model $budget $*: no expert came by libmoert"
}

count=0
for layout in qwen3moe mixtral deepseek2 gpt-oss; do
  python3 "$here/make_gguf.py" "$layout" "$layout.f16.gguf"
  for format in f16 q8_0 q4_0 q4_k q6_k iq4_xs mxfp4; do
    model=$layout.$format.gguf
    [ "$format" = f16 ] || "$host" quantize "$layout.f16.gguf" "$model" "$format" >quantize.log 2>&1
    "$host" logits "$model" stock.logits
    # 4 % of 32 or 48 experts is one: the smallest budget that libmoert takes.
    for budget in 100% 50% 25% 4%; do
      same "$budget" "$model" stock.logits
      count=$((count + 1))
    done
    [ "$format" = f16 ] || [ "$format" = mxfp4 ] || rm "$model"
  done
done
echo "$count combinations of layout, format and budget"

# Statistics that can be watched, of two models at once.
model=qwen3moe.f16.gguf
"$host" logits "$model" stock.logits
MOERT_STATS_FILE=$work/stats same 25% "$model" stock.logits two
for file in stats stats.2; do
  head -1 "$file" | grep -Eq '^# .*qwen3moe.*: [1-9][0-9]* tokens, .* lookups' &&
    [ "$(grep -c '^moert_lookups_total{' "$file")" = 1 ] || fail "statistics: $(head -1 "$file")"
done
MOERT_STATS_FILE=$work/none/stats same 25% "$model" stock.logits
grep -q 'stats cannot be written' with.log || fail "statistics: not said: $(cat with.log)"

# Trained weights, and every strategy that llama.cpp's users may name.
python3 "$here/trained_gguf.py" "$source/examples/models/tiny-moe" trained.gguf
"$host" logits trained.gguf stock.logits
for strategy in on-demand fate; do
  MOERT_STRATEGY=$strategy same 25% trained.gguf stock.logits
  [ "$strategy" = on-demand ] || grep -Eq ' [1-9][0-9]* prefetched' with.log ||
    fail "$strategy: nothing was prefetched in time: $(tail -1 with.log)"
done

# A budget of a file.
budget_file() {  # TEXT OF THE FILE, MODEL
  echo "$1" >budget
  MOERT_BUDGET_FILE=$work/budget same 100% "$2" stock.logits  # which is not asked then
}
budget_file 25% trained.gguf
grep -q 'a budget of' with.log || fail "a budget of a file: $(cat with.log)"

# How experts come to the plug-in, and what else a host does.
model=gpt-oss.mxfp4.gguf
"$host" logits "$model" stock.logits
for mode in cpu_moe override reload two; do same 25% "$model" stock.logits "$mode"; done
MOERT_STRATEGY=fate same 25% "$model" stock.logits cpu_moe
"$host" logits "$model" stock.logits parallel
same 25% "$model" stock.logits parallel

# A server's steps: a context shift, the plug-in unloaded and loaded again; and a model in parts.
model=qwen3moe.f16.gguf
"$host" logits "$model" stock.logits shift
same 25% "$model" stock.logits shift
"$host" logits "$model" stock.logits
same 25% "$model" stock.logits unload
python3 "$here/make_gguf.py" qwen3moe parts.gguf split=3
same 25% parts-00001-of-00003.gguf stock.logits
one_model() { [ "$(grep -c 'of experts, a budget' with.log)" = 1 ] || fail "$1: $(cat with.log)"; }
one_model "parts are not one model"
# As -hf downloads them: names that have nothing in common, and a first part without tensors.
python3 "$here/make_gguf.py" qwen3moe parts.gguf split=3 header=1
mkdir blobs
for part in 1 2 3; do
  blob=$(sha256sum "parts-0000$part-of-00003.gguf" | cut -c1-40)
  mv "parts-0000$part-of-00003.gguf" "blobs/$blob"
  ln -s "blobs/$blob" "parts-0000$part-of-00003.gguf"
done
MOERT_STRATEGY=fate same 25% parts-00001-of-00003.gguf stock.logits
one_model "parts whose names have nothing in common are not one model"
grep -Eq ' [1-9][0-9]* prefetches' with.log || fail "parts: routers were not found: $(cat with.log)"
# Two experts a token, whatever the file says; and an adapter of experts, which costs no more reads.
"$host" logits "$model" used2.logits used2
same 25% "$model" used2.logits used2
python3 "$here/make_gguf.py" lora lora.gguf
export HOST_LORA=$work/lora.gguf
"$host" logits "$model" lora.logits lora
cmp -s lora.logits stock.logits && fail "the adapter changes nothing"
lookups() { sed -n 's/.* \([0-9]*\) lookups.*/\1/p' with.log; }
same 60% "$model" stock.logits
plain_lookups=$(lookups)
for budget in 60% 25% 4%; do  # at the last two some at a time
  same "$budget" "$model" lora.logits lora
  [ "$(lookups)" -lt $((plain_lookups * 5 / 4)) ] ||
    fail "an adapter at $budget: $(lookups) lookups, $plain_lookups without"
done
# A factor of every expert costs no more reads either.
python3 "$here/make_gguf.py" qwen3moe scaled.gguf scale=1
"$host" logits scaled.gguf scaled.logits
cmp -s scaled.logits stock.logits && fail "the factors change nothing"
for budget in 60% 25% 4%; do
  same "$budget" scaled.gguf scaled.logits
  [ "$(lookups)" -lt $((plain_lookups * 5 / 4)) ] ||
    fail "factors at $budget: $(lookups) lookups, $plain_lookups without"
done
# An evaluation callback sees the same, inputs included.
"$host" logits "$model" seen.logits callback
same 25% "$model" seen.logits callback

# Where the plug-in has nothing to do or cannot do it, llama.cpp goes on, and one line says why.
stays() {  # WHAT IS SAID, then a command
  local said=$1
  shift
  rm -f with.logits
  "$@" >with.log 2>&1 || { fail "$said: $(tail -1 with.log)"; return; }
  cmp -s stock.logits with.logits || fail "$said: other logits"
  [ "$(grep -c '^moert:.*'"$said" with.log)" = 1 ] || fail "\"$said\" is not said once: $(cat with.log)"
}
"$host" logits "$model" stock.logits
plain=(env GGML_BACKEND_PATH="$plugin")
run=("$host" logits "$model" with.logits)
stays 'MOERT_BUDGET is "much"' "${plain[@]}" MOERT_BUDGET=much "${run[@]}"
echo much >budget
stays 'budget has "much"' "${plain[@]}" MOERT_BUDGET_FILE="$work/budget" "${run[@]}"
stays 'none cannot be opened' "${plain[@]}" MOERT_BUDGET_FILE="$work/none" "${run[@]}"
stays 'MOERT_IO_THREADS is "0"' "${plain[@]}" MOERT_IO_THREADS=0 "${run[@]}"
stays 'MOERT_PINNED is "25%"' "${plain[@]}" MOERT_PINNED=25% "${run[@]}"
stays 'multiplied where they are mapped' "${plain[@]}" MOERT_STRATEGY=magic "${run[@]}"
stays 'reserving .* of address space' "${plain[@]}" MOERT_BUDGET=99% "${run[@]}" tight
stays 'MOERT_BUGDET is no variable' "${plain[@]}" MOERT_BUGDET=8G MOERT_BUDGET=25% "${run[@]}"
# Every format: multiplied where they are mapped, loaded without mmap, and left to llama.cpp, which
# rearranges weights, where all fit.
for format in bf16 q8_0 q4_0 q4_1 q5_0 q5_1 iq4_nl iq4_xs q2_k_m q3_k_m q4_k_m q5_k_m q6_k iq3_s_m \
  mxfp4; do
  "$host" quantize qwen3moe.f16.gguf out.gguf "$format" >quantize.log 2>&1
  run=("$host" logits out.gguf with.logits)
  "$host" logits out.gguf stock.logits
  stays 'multiplied where they are mapped' "${plain[@]}" MOERT_BUDGET=1KiB "${run[@]}"
  stays 'in RAM already' "${plain[@]}" MOERT_BUDGET=25% "${run[@]}" no_mmap
  same 25% out.gguf stock.logits
  "$host" logits out.gguf stock.logits repack
  for fits in MOERT_BUDGET=100% MOERT_BUDGET=1G MOERT_STATS=1; do
    stays 'fit: they are llama.cpp' "${plain[@]}" "$fits" "${run[@]}" repack
    stays 'fit: they are llama.cpp' "${plain[@]}" "$fits" "${run[@]}" repack cpu_moe
  done
done
model=qwen3moe.f16.gguf
"$host" logits "$model" stock.logits
run=("$host" logits "$model" with.logits)
# --mlock: the system refuses it, or the experts take memory twice, which is said.
locked() {
  rm -f with.logits
  "$@" HOST_VERBOSE=1 MOERT_BUDGET=25% GGML_BACKEND_PATH="$plugin" "${run[@]}" mlock >with.log 2>&1 ||
    fail "mlock: $(tail -1 with.log)"
  cmp -s stock.logits with.logits || fail "mlock: other logits"
  grep -Eq 'failed to mlock|^moert: .*is locked in RAM' with.log || fail "mlock: not said"
}
locked env
refused=(prlimit --memlock=0 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock env)
if "${refused[@]}" true 2>/dev/null; then locked "${refused[@]}"; fi

# A file that is cut short while it is in use: that call fails, and llama.cpp stays up.
cp "$model" cut.gguf
env GGML_BACKEND_PATH="$plugin" MOERT_BUDGET=25% "$host" cut cut.gguf >with.log 2>&1 ||
  fail "a file cut short: $(tail -1 with.log)"
grep -q '^moert: .*truncated while in use' with.log || fail "a file cut short: $(cat with.log)"

# The budget bounds what the process holds: here of 288 MiB of experts, half of which are named.
python3 "$here/make_gguf.py" qwen3moe large.gguf layers=6 experts=64 hidden=512 ff=256
"$host" logits large.gguf stock.logits
for budget in 64 128; do
  same "$budget"MiB large.gguf stock.logits
  held=$(env GGML_BACKEND_PATH="$plugin" MOERT_BUDGET="$budget"MiB "$llama/build/bin/peak_ram" \
    "$host" logits large.gguf with.logits 2>&1 | sed -n 's/.* \([0-9]*\) MiB not of files.*/\1/p')
  [ "$held" -gt $((budget * 8 / 10)) ] && [ "$held" -lt $((budget + 48)) ] ||
    fail "with a budget of $budget MiB the process holds $held MiB"
done
# Without one, what a control group leaves is enough: the process is not killed. Slots of mixed
# formats take no more than experts.
in_group() {  # MODEL MIB
  local status=0
  env GGML_BACKEND_PATH="$plugin" MOERT_STATS=1 MOERT_STRATEGY=on-demand "$here/in_group.sh" \
    $(($2 << 20)) "$host" logits "$1" with.logits >with.log 2>&1 || status=$?
  case $status in
    0) cmp -s stock.logits with.logits || fail "other logits within a control group" ;;
    77) echo "no control group can be made: the budget within one was not tested" ;;
    *) fail "killed within a control group: $(cat with.log)" ;;
  esac
}
in_group large.gguf 128
"$host" quantize large.gguf mixed.gguf q2_k_m >quantize.log 2>&1
"$host" logits mixed.gguf stock.logits
in_group mixed.gguf 128

# Beside a GPU. The one here computes on the CPU, in host memory: the parts of graphs, tokens one by
# one, few and many, and the way between memories are those of a GPU.
mkdir gpu
cp "$llama/build/fake/libfake_cuda.so" gpu/libggml-cuda.so  # which llama.cpp looks for here
cp gpu/libggml-cuda.so gpu/libcuda.so.1
beside() {  # BUDGET MODEL STOCK MODE ...
  local budget=$1 model=$work/$2 stock=$3
  shift 3
  rm -f gpu/with.logits
  (cd gpu && env LD_LIBRARY_PATH="$PWD" MOERT_BUDGET="$budget" MOERT_STATS=1 MOERT_DEVICE=1 \
    GGML_BACKEND_PATH="$plugin" "$host" logits "$model" with.logits gpu "$@") >with.log 2>&1 ||
    fail "GPU, $model $budget $*: $(tail -1 with.log)"
  cmp -s "$stock" gpu/with.logits || fail "GPU, $model $budget $*: other logits"
}
for layout in qwen3moe gpt-oss; do
  for format in f16 mxfp4; do
    beside_model=$layout.$format.gguf
    "$host" logits "$beside_model" stock.logits
    for budget in 60% 25% 4%; do
      for whole in whole ""; do
        beside "$budget" "$beside_model" stock.logits cpu_moe $whole
        grep -q '^moert: .*on the GPU' with.log || fail "not on the GPU: $(cat with.log)"
        grep -Eq ' [1-9][0-9]* (loads|experts came beside)' with.log ||
          fail "GPU: no expert came by libmoert"
      done
    done
    # The CPU may take some of what is missing; in host memory it never does.
    grep -q '^moert: .*on the GPU, and on the CPU' with.log || fail "by default: $(cat with.log)"
    for none in MOERT_CPU=0 MOERT_EXACT=1; do
      export "${none?}"
      beside 60% "$beside_model" stock.logits cpu_moe
      ! grep -q 'and on the CPU' with.log || fail "$none: $(cat with.log)"
      unset "${none%=*}"
    done
    for whole in whole ""; do  # all fit: they are CUDA's, and nobody's cache
      beside 100% "$beside_model" stock.logits cpu_moe $whole
      ! grep -q '^moert:' with.log || fail "all fit, and yet: $(cat with.log)"
    done
  done
done
# Prompts that the CPU shares, beside a link that needs seconds. Rounding is another then, and by
# MOERT_EXACT it is not; biases and factors of experts are in it, and experts that cross the link.
near() {  # MODEL BUDGET [routed]
  local shared_model=$1 budget=$2
  shift 2
  "$host" logits "$shared_model" prompts.logits prompts
  MOERT_EXACT=1 FAKE_GPU_COPY_MS=2000 beside "$budget" "$shared_model" prompts.logits cpu_moe prompts
  ! grep -q 'the CPU computed [1-9]' with.log || fail "MOERT_EXACT: $(cat with.log)"
  (cd gpu && env LD_LIBRARY_PATH="$PWD" MOERT_BUDGET="$budget" MOERT_STATS=1 FAKE_GPU_COPY_MS=2000 \
    GGML_BACKEND_PATH="$plugin" "$host" logits "$work/$shared_model" with.logits gpu cpu_moe prompts) \
    >with.log 2>&1 || fail "GPU, prompts of $shared_model: $(tail -1 with.log)"
  grep -Eq ' [1-9][0-9]* experts came beside the cache, and the CPU computed [1-9]' with.log ||
    fail "prompts of $shared_model at $budget are not shared: $(cat with.log)"
  python3 "$here/near.py" prompts.logits gpu/with.logits 0.02 "$@" || fail "prompts of $shared_model at $budget"
}
for layout in qwen3moe gpt-oss; do
  # Where a token takes all experts, rounding cannot move its routing.
  python3 "$here/make_gguf.py" "$layout" all.f16.gguf top_k=16
  for format in q4_0 q4_k q6_k mxfp4; do
    "$host" quantize all.f16.gguf all.gguf "$format" >quantize.log 2>&1
    "$host" quantize "$layout.f16.gguf" shared.gguf "$format" >quantize.log 2>&1
    for budget in 25% 4%; do
      near all.gguf "$budget"
      near shared.gguf "$budget" routed
    done
  done
done
near scaled.gguf 25% routed
"$host" logits qwen3moe.f16.gguf stock.logits used2
beside 60% qwen3moe.f16.gguf stock.logits cpu_moe used2
grep -q 'layer calls of few tokens' with.log || fail "two experts a token: $(cat with.log)"
"$host" logits qwen3moe.f16.gguf stock.logits callback
for budget in 60% 25% 4%; do
  for whole in whole ""; do beside "$budget" qwen3moe.f16.gguf stock.logits cpu_moe callback $whole; done
done
"$host" logits qwen3moe.f16.gguf stock.logits lora
for whole in whole ""; do
  for budget in 60% 4%; do beside "$budget" qwen3moe.f16.gguf stock.logits cpu_moe lora $whole; done
  for budget in 60% 4%; do beside "$budget" scaled.gguf scaled.logits cpu_moe $whole; done
done
# More experts than ggml's kernels count blocks of at once: it is the slots that count.
python3 "$here/make_gguf.py" qwen3moe sparse.gguf layers=11 experts=64 hidden=1024 ff=1024 sparse=1
"$host" logits sparse.gguf stock.logits
beside 5% sparse.gguf stock.logits cpu_moe
grep -q '^moert: .*on the GPU' with.log || fail "4 GiB of F16 are not on the GPU: $(cat with.log)"
rm sparse.gguf
"$host" logits "$beside_model" stock.logits
# No memory for layers beside the cache (16 experts of 3 matrices): they are computed in parts.
"$host" logits qwen3moe.f16.gguf refused.logits
for budget in 25% 4%; do
  FAKE_GPU_REFUSES=$((16 * 3 * 256 * 256 * 2)) beside "$budget" qwen3moe.f16.gguf refused.logits cpu_moe
  [ "$(grep -c '^moert: prompts are computed in parts' with.log)" = 1 ] ||
    fail "no memory beside the cache: $(cat with.log)"
done
for mode in override reload two; do
  for whole in whole ""; do beside 25% "$beside_model" stock.logits cpu_moe "$mode" $whole; done
done
# Where it is not to be, or cannot, the CPU goes on, and one line says why.
for whole in whole ""; do
  beside 25% "$beside_model" stock.logits cpu_moe no_mmap $whole
  [ "$(grep -c '^moert: .*in RAM already' with.log)" = 1 ] || fail "a GPU without mmap: $(cat with.log)"
done
MOERT_GPU=0 beside 25% "$beside_model" stock.logits cpu_moe
! grep -q 'on the GPU' with.log || fail "MOERT_GPU=0: $(cat with.log)"
for whole in whole ""; do
  beside 1KiB "$beside_model" stock.logits cpu_moe $whole
  [ "$(grep -c '^moert: .*the CPU multiplies experts, not the GPU' with.log)" = 1 ] ||
    fail "a GPU that is too small: $(cat with.log)"
done

# llama.cpp's own test of its architectures; and the models that it makes, one of each.
bin=$llama/build/bin
env GGML_BACKEND_PATH="$plugin" MOERT_BUDGET=60% MOERT_STRATEGY=on-demand "$bin/test-llama-archs" -b MOERT -s 1 \
  >archs.log 2>&1 || fail "test-llama-archs: $(tail -5 archs.log)"
[ "$(grep -ac 'OK' archs.log)" -ge 100 ] || fail "test-llama-archs: $(tail -1 archs.log)"  # its last lines may be lost
mkdir archs
"$bin/test-llama-archs" -s 1 -o archs >save.log 2>&1 || fail "models are not made: $(tail -3 save.log)"
rm archs/refact-moe.gguf  # has experts that llama.cpp does not multiply
count=0
for arch in archs/*-moe.gguf; do
  grep -aq ffn_down_exps "$arch" || continue
  "$host" logits "$arch" stock.logits >stock.log 2>&1 || { fail "stock does not run $arch"; continue; }
  same 60% "$arch" stock.logits
  count=$((count + 1))
done
[ "$count" -ge 40 ] || fail "only $count architectures ran"
echo "$count architectures"

# A server with several slots; and a day in its life.
server=$llama/build/bin/llama-server
python3 "$here/server_test.py" "$server" "$plugin" "$model" "$work" || fail "llama-server"
for gpu in "" "$work/gpu"; do
  python3 "$here/day_test.py" "$server" "$plugin" trained.gguf "$work" ${gpu:+"$gpu"} || fail "a day of llama-server"
done
LLAMA_ARG_DEVICE=MOERT0 python3 "$here/day_test.py" "$server" "$plugin" trained.gguf "$work" "$work/gpu" ||
  fail "a day of llama-server on MOERT0"

[ "$failures" = 0 ] && echo "logits with the plug-in are those without it"
exit "$((failures > 0))"
