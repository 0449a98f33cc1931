#!/usr/bin/env bash
# Spelling of the documents and of the public headers. Exit status 77: no codespell.
#   spelling.sh SOURCE_DIR
set -euo pipefail
command -v codespell >/dev/null || { echo "SKIPPED: codespell is not installed (Debian: apt install codespell)"; exit 77; }
ignore=$(cd "$(dirname "$0")" && pwd)/spelling.ignore
cd "$1"
codespell --ignore-words "$ignore" --skip '*.json,*.svg' \
  README.md CONTRIBUTING.md CHANGELOG.md docs include capi/include
