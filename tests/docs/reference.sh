#!/usr/bin/env bash
# The API reference of the public headers, warnings as errors. Exit status 77: no Doxygen.
#   reference.sh BUILD_DIR
set -euo pipefail
command -v doxygen >/dev/null || { echo "SKIPPED: doxygen is not installed (Debian: apt install doxygen)"; exit 77; }
config=$1/doxygen/reference.doxyfile
[ -f "$config" ] || { echo "SKIPPED: doxygen was not there when CMake configured"; exit 77; }
mkdir -p "$1/doxygen/reference"
doxygen "$config" 2>&1
# An empty reference has no warnings either.
for page in capi_2include_2moert_2c_2engine_8h.html classmoert_1_1Engine.html structmoert__engine__options.html; do
  grep -q 'memdoc' "$1/doxygen/reference/html/$page" || { echo "$page documents nothing"; exit 1; }
done
