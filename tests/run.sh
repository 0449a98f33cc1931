#!/usr/bin/env bash
# From a clean clone to green: installs what is missing, builds, runs the tests, and ends on ctest's own
# summary.
#   tests/run.sh [--slow] [--sanitizers]
# --slow: also the tests labelled slow. --sanitizers: first the address, undefined-behaviour and thread
# sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

slow=(-LE '^slow$') slow_too= sanitizers=
for option; do
  case $option in
    --slow) slow=() slow_too=1 ;;
    --sanitizers) sanitizers=1 ;;
    *) echo "tests/run.sh: unknown option $option (there are --slow and --sanitizers)" >&2; exit 2 ;;
  esac
done

cmake/install-deps.sh --all

# Without a device, device code is compiled but not assembled, and tests that would be skipped are not
# built; --slow does all of it, for every architecture.
device=(-UMOERT_CUDA_ARCHITECTURES -UMOERT_GPU_TESTS)
if [ -z "$slow_too" ] && ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  device=(-DMOERT_CUDA_ARCHITECTURES=90a-virtual -DMOERT_GPU_TESTS=OFF)
fi

build() {  # preset [target]
  echo "== building $1"
  cmake --preset "$1" "${device[@]}" >/dev/null
  cmake --build "build/$1" --parallel "$jobs" --target "${2:-all}"
}

if [ -n "$sanitizers" ]; then
  # Memory and undefined behaviour over everything but the slowest runs and the installed tree; races
  # where threads meet. Examples are built too: the host's parsers read hostile files as well.
  build asan
  ctest --test-dir build/asan --output-on-failure --parallel "$jobs" -LE "parity|slow|install"
  build tsan concurrency_tests
  ctest --test-dir build/tsan --output-on-failure --parallel "$jobs" -L concurrency
fi
build check
ctest --test-dir build/check --output-on-failure --parallel "$jobs" "${slow[@]}"
