#!/usr/bin/env bash
# From a clean clone to green: installs what is missing, builds, runs every test. With --quick, only the
# optimized build. Ends on ctest's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

cmake/install-deps.sh

build() {  # preset [cmake arguments]
  local preset=$1
  shift
  echo "== building $preset"
  cmake --preset "$preset" "$@" >/dev/null
  cmake --build "build/$preset" --parallel "$jobs"
}

if [ "${1:-}" != --quick ]; then
  # Memory and undefined behaviour over everything but the slowest parity runs; races where threads
  # meet. Examples are built too: the host's parsers read hostile files as well.
  build asan
  ctest --test-dir build/asan --output-on-failure --parallel "$jobs" -LE "parity|slow"
  build tsan
  ctest --test-dir build/tsan --output-on-failure --parallel "$jobs" -L concurrency
fi
build dev
ctest --test-dir build/dev --output-on-failure --parallel "$jobs"
