#!/usr/bin/env bash
# From a clean clone to text: installs what moert-run needs, builds it alone in a folder of its own, and
# lets the bundled model write under a quarter of the memory its experts take.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake/install-deps.sh --tools
cmake --preset quickstart >/dev/null
cmake --build --preset quickstart --parallel "$(nproc)"

model=examples/models/tiny-moe
set -x
build/quickstart/bin/moert-run generate --model "$model" --strategy auto --budget 25% --max-tokens 64 \
  --prompt "Question: A farmer has 12 cows and buys 7 more. How many cows does he have now?
Answer:"
