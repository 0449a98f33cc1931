#!/usr/bin/env bash
# What examples/quickstart.sh builds, in a folder of its own.
#   from_clone_test.sh SOURCE_DIR WORK_DIR configure|run
# configure: the preset configures with a plan for the tool and nothing of tests or CUDA. run: the tool is
# built and writes text.
set -euo pipefail
rm -rf "$2"
mkdir -p "$2"
cmake -S "$1" -B "$2/build" --preset quickstart >/dev/null
if [ "$3" = configure ]; then
  plan=$(ninja -C "$2/build" -t commands moert-run)
  steps=$(wc -l <<<"$plan")
  echo "$steps steps"
  if [[ $plan != *"-o bin/moert-run"* ]] || [ "$steps" -gt 250 ] || grep -E " $1/tests/|nvcc|moert_catch" <<<"$plan"; then
    echo "the tool takes too much: $steps steps, or what is listed above"
    exit 1
  fi
  exit
fi
cmake --build "$2/build" --target moert-run >"$2/build.log" 2>&1 || { tail -40 "$2/build.log"; exit 1; }
text=$("$2/build/bin/moert-run" generate --model "$1/examples/models/tiny-moe" --strategy auto --budget 25% \
       --cache "$2/cache" --max-tokens 16 --prompt "Question: 12 x 7?" 2>&1)
echo "$text"
[[ $text == *"of 256 experts"* ]]
