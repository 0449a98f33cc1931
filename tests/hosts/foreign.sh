#!/usr/bin/env bash
# Hosts in languages that CMake does not build. Exit status 77: what it takes is not installed.
#   foreign.sh BUILD_DIR LIBRARY_DIR SOURCE_DIR WORK_DIR ACTION [PROGRAM...]
# ACTION: rust_decoder (says what the C++ host says, PROGRAM), languages (the same program in all of them prints the same), rust, go (their own tests),
# rust_soak, go_soak (the threads alone), rust_bindings (the checked-in ones are moert.h's).
set -euo pipefail
build=$1 library=$2 source=$3 work=$4 action=$5
shift 5
export PKG_CONFIG_PATH=$build LD_LIBRARY_PATH=$library
export CARGO_TARGET_DIR=$work/rust CARGO_NET_OFFLINE=true RUST_BACKTRACE=0
python=python3
export MOERT_LIBRARY=$library/libmoert.so PYTHONPATH=$source/capi/python PYTHONDONTWRITEBYTECODE=1
export GOCACHE=$work/go GOPROXY=off GOFLAGS=-mod=mod GOTOOLCHAIN=local GO111MODULE=on CGO_ENABLED=1

# why_not LANGUAGE: what is missing, or nothing.
why_not() {
  command -v pkg-config >/dev/null || { echo "pkg-config is not installed"; return; }
  case $1 in
    rust)
      if ! command -v cargo >/dev/null; then
        echo "cargo is not installed (Debian: apt install cargo)"
      elif ! rustc --version | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 63) }'; then
        echo "$(rustc --version) is older than 1.63"
      fi ;;
    python)
      command -v "$python" >/dev/null || echo "$python is not installed (Debian: apt install python3)" ;;
    go)
      if ! command -v go >/dev/null; then
        echo "go is not installed (Debian: apt install golang-go)"
      elif ! go version | awk '{ sub("go", "", $3); split($3, v, "."); exit !(v[1] > 1 || v[2] >= 18) }'; then
        echo "$(go version) is older than 1.18"
      fi ;;
  esac
}

need() {
  local why
  why=$(why_not "$1")
  if [ -n "$why" ]; then
    echo "SKIPPED: $why"
    exit 77
  fi
}

case $action in
  rust | rust_soak)
    need rust
    cd "$source/examples/rust"
    if [ "$action" = rust ]; then
      cargo test --offline --locked --workspace 2>&1
    fi
    if [ "$action" = rust_soak ]; then
      cargo test --offline --locked --package moert --test threads -- --nocapture 2>&1
    fi ;;
  go)
    need go
    cd "$source/examples/go"
    if [ -n "$(gofmt -l .)" ]; then
      echo "not formatted by gofmt: $(gofmt -l .)"
      exit 1
    fi
    go vet ./...
    noise=$(go build ./... 2>&1)
    if [ -n "$noise" ]; then
      printf 'cgo over the header is not silent:\n%s\n' "$noise"
      exit 1
    fi
    go test -count=1 -v ./... ;;
  go_soak)
    need go
    cd "$source/examples/go"
    go test -count=1 -v -run TestManyGoroutines ./moert ;;
  rust_decoder)
    need rust
    model=$source/examples/models/tiny-moe text=$source/tests/data/eval/humaneval.tokens.u16
    export XDG_CACHE_HOME=$work/cache
    (cd "$source/examples/rust" && cargo build --offline --locked --quiet --package moert-decoder)
    ours=$("$CARGO_TARGET_DIR/debug/moert-decoder" "$model" "$text")
    theirs=$("$1" "$model" "$text")
    echo "$ours"
    # Attention of its own, in another order of sums: not bit by bit.
    printf '%s\n%s\n' "$ours" "$theirs" | awk '
      $1 == "nll" { v[++n] = $2 + 0; print "nll " v[n] }
      END { d = v[1] / v[2] - 1; exit !(n == 2 && v[1] > 0.5 && d < 1e-3 && d > -1e-3) }' ;;
  rust_bindings)
    if ! bindgen --version 2>/dev/null | grep -q ' 0\.60\.' || ! command -v rustfmt >/dev/null; then
      echo "SKIPPED: bindgen 0.60 and rustfmt are not installed"
      exit 77
    fi
    noise=$("$source/examples/rust/moert-sys/generate.sh" "$work/bindings.rs" 2>&1)
    if [ -n "$noise" ]; then
      printf 'bindgen over the header is not silent:\n%s\n' "$noise"
      exit 1
    fi
    if ! diff "$source/examples/rust/moert-sys/src/lib.rs" "$work/bindings.rs"; then
      echo "moert.h and its Rust bindings differ: run examples/rust/moert-sys/generate.sh"
      exit 1
    fi ;;
  languages)
    programs=("$@")
    why=$(why_not rust)
    if [ -z "$why" ]; then
      (cd "$source/examples/rust" && cargo build --offline --locked --quiet --package moert-hello)
      programs+=("$CARGO_TARGET_DIR/debug/moert-hello")
    else
      echo "Rust is left out: $why"
    fi
    why=$(why_not go)
    if [ -z "$why" ]; then
      (cd "$source/examples/go" && go build -o "$work/hello_go" ./hello)
      programs+=("$work/hello_go")
    else
      echo "Go is left out: $why"
    fi
    why=$(why_not python)
    if [ -z "$why" ]; then
      printf '#!/bin/sh\nexec "%s" "%s/examples/python/hello.py"\n' "$python" "$source" > "$work/hello_python"
      chmod +x "$work/hello_python"
      programs+=("$work/hello_python")
    else
      echo "Python is left out: $why"
    fi
    expected=$("${programs[0]}")
    echo "$expected"
    [[ $expected == *"budget kept: yes"*"one byte: INVALID_ARGUMENT"* ]]
    for program in "${programs[@]}"; do
      text=$("$program")
      if [ "$text" != "$expected" ]; then
        printf '%s prints something else:\n%s\n' "$program" "$text"
        exit 1
      fi
      echo "the same: $(basename "$program")"
    done ;;
  *)
    echo "unknown action $action"
    exit 2 ;;
esac
