#!/usr/bin/env bash
# examples/, copied to where no source tree is, as a project of its own: configured and built against
# an installed libmoert, then each tool and host is run once.
#   examples_test.sh BUILD_DIR SOURCE_DIR WORK_DIR hosts|all
# hosts: everything is configured, and what links libmoert alone is built. all: the decoder and tools too.
set -euo pipefail
build=$1 source=$2 work=$3 part=$4
rm -rf "$work"
mkdir -p "$work"
for component in runtime development; do
  cmake --install "$build" --prefix "$work/prefix" --component "$component" >"$work/install.log"
done
cp -R "$source/examples" "$work/examples"
export XDG_CACHE_HOME=$work/cache

# Optimized a little: what counts is that it compiles and links, and that it runs.
logged() { "$@" >"$work/build.log" 2>&1 || { tail -50 "$work/build.log"; exit 1; }; }
logged cmake -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DMOERT_EXAMPLES_CUDA=OFF
hosts=(readme_c readme_cpp in_place hello_layer c_host own_kernels own_store own_rules own_format)
targets=(all)
[ "$part" = all ] || targets=("${hosts[@]}")
logged cmake --build "$work/build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" --target "${targets[@]}"

cd "$work"
model=$source/examples/models/tiny-moe
"$work/build/readme_c" "$model" >from_c
"$work/build/readme_cpp" "$model" >from_cpp
diff from_c from_cpp
for host in in_place hello_layer c_host own_kernels own_store own_rules own_format; do
  "$work/build/$host" >"$host.out" || { cat "$host.out"; exit 1; }
done
if [ "$part" = hosts ]; then
  echo "the hosts of examples/ build against an installed libmoert and run"
  exit
fi
bin=$work/build/bin tokens=$source/tests/data/eval
prompt='Question: A farmer has 12 cows and buys 7 more.'
generate() { "$1" generate --model "$model" --budget 25% --max-tokens 16 --prompt "$prompt" "${@:2}"; }
generate "$bin/moert-run" --trace "$work/routing.trace" | tee text
test -s text
"$bin/moert-pack" quantize --model "$model" --out pack --schemes bf16,w4a16_g128 --quiet
"$bin/moert-pack" quantize --model "$model" --out gptq --schemes w4a16_g128 --method gptq \
  --tokens "$tokens/gsm8k.tokens.u16" --calibration-tokens 1024 --quiet
"$bin/moert-pack" verify gptq
"$bin/moert-pack" calibrate --model "$model" --tokens "$tokens/gsm8k.tokens.u16" --out calib \
  --calibration-tokens 512 --probe-tokens 512 --schemes w4a16_g128,w2a16_g64_asym --method rtn --quiet
"$bin/moert-pack" allocate --calibration calib --bits 3.5 --out plan
"$bin/moert-pack" info pack --budget 25%
"$bin/moert-sim" --trace routing.trace --budget 25% --strategy fate --quiet --json - >sim.json
"$bin/moert-bench" gemm --bytes 4MiB --hidden 128 --intermediate 64 --tokens 1 --repeats 1 --threads 1
if "$bin/moert-bench" gemm --backend cuda 2>refused; then
  echo "gemm --backend cuda measures kernels that an installed libmoert does not show"
  exit 1
fi
grep "libmoert's own build" refused
"$work/build/custom_policy" "$model" "$tokens/gsm8k.tokens.u16" >policy.out || { cat policy.out; exit 1; }
echo "all of examples/ builds against an installed libmoert and runs"
