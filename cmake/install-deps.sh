#!/usr/bin/env bash
# Installs what building, testing and running libmoert needs on Debian 12+ and Ubuntu 22.04+. Says what
# it installs, and installs nothing that is there. Run as root, or with sudo available.
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config git libabsl-dev libfmt-dev
          nlohmann-json3-dev libpcre2-dev libeigen3-dev catch2)
# Wanted, not needed: a faster rebuild, and what some parts of the project use when it is there.
optional=(ccache)

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install-deps: this is not Debian or Ubuntu. Needed: a C++20 compiler, CMake 3.22+, Ninja," \
       "Abseil, fmt, nlohmann-json, PCRE2 (8 bit), Eigen 3, Catch2. CMake fetches missing libraries where" \
       "a network exists." >&2
  exit 0
fi

missing=()
for package in "${packages[@]}" "${optional[@]}"; do
  if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-deps: these packages are missing and neither root nor sudo is at hand:" \
         "${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "install-deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
