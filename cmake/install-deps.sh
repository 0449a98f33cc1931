#!/usr/bin/env bash
# Installs what building libmoert and its tools needs on Debian 12+ and Ubuntu 22.04+. Says what it
# installs, and installs nothing that is there. Run as root, or with sudo available.
#   --tools   only what the command line tools need (a compiler, CMake, libraries)
#   --tests   also the test framework
#   --all     also what some tests skip without: the ABI check, Rust, bindgen, Go, doxygen, spelling; ccache; the
#             exact solver of moert-pack allocate
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config git libabsl-dev libfmt-dev
          nlohmann-json3-dev libpcre2-dev)
optional=()
case "${1:-}" in
  "") ;;
  --tools) packages=(g++ cmake ninja-build libabsl-dev libfmt-dev nlohmann-json3-dev libpcre2-dev) ;;
  --tests) packages+=(catch2) ;;
  --all)
    packages+=(catch2)
    optional=(abigail-tools ccache coinor-libcbc-dev)
    # A tool that is there under another name (rustup's cargo) is not installed again.
    command -v cargo >/dev/null || optional+=(cargo)
    command -v bindgen >/dev/null || optional+=(bindgen)
    command -v rustfmt >/dev/null || optional+=(rustfmt)
    command -v go >/dev/null || optional+=(golang-go)
    command -v doxygen >/dev/null || optional+=(doxygen)
    command -v codespell >/dev/null || optional+=(codespell)
    ;;
  *)
    echo "install-deps: unknown option $1 (there are --tools, --tests and --all)" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install-deps: this is not Debian or Ubuntu. Needed: a C++20 compiler, CMake 3.22+, Ninja," \
       "Abseil, fmt, nlohmann-json, PCRE2 (8 bit), Catch2. CMake fetches missing libraries where" \
       "a network exists." >&2
  exit 0
fi

is_missing() { ! dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
missing=() wanted=()
for package in "${packages[@]}"; do
  if is_missing "$package"; then missing+=("$package"); fi
done
for package in ${optional[@]+"${optional[@]}"}; do
  if is_missing "$package"; then wanted+=("$package"); fi
done
if [ ${#missing[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    if [ ${#missing[@]} -eq 0 ]; then
      echo "install-deps: not installed, tests that want them are skipped: ${wanted[*]}"
      exit 0
    fi
    echo "install-deps: these packages are missing and neither root nor sudo is at hand:" \
         "${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
apt_install() { "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
if [ ${#missing[@]} -ne 0 ]; then
  echo "install-deps: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  apt_install "${missing[@]}"
fi
for package in ${wanted[@]+"${wanted[@]}"}; do
  echo "install-deps: installing $package (optional)"
  apt_install "$package" 2>/dev/null ||
    echo "install-deps: $package cannot be had; the tests that want it are skipped"
done
