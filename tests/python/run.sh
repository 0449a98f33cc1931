#!/usr/bin/env bash
# One test of the Python package. Exit status 77: what it takes cannot be had.
#   run.sh SOURCE_DIR BUILD_DIR LIBRARY WORK_DIR TEST
# Tests that need torch run in the interpreter that MOERT_PYTHON names, in python3 if it has torch and
# transformers 5, or in a virtual environment that is made once, in MOERT_TEST_VENV (default: the user's
# cache folder).
set -euo pipefail
source=$1 build=$2 library=$3 work=$4/$5 test=$5
here=$source/tests/python
mkdir -p "$work"
cd "$work"  # beside it lie folders that are named as modules, which Python would import
unset MOERT_LIBRARY MOERT_TOOLS PYTHONPATH
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

skip() {
  echo "SKIPPED: $1"
  exit 77
}

use_tree() {  # the package as it lies here, with this build's library
  export MOERT_LIBRARY=$library MOERT_TOOLS=$build/bin PYTHONPATH=$source/capi/python
}

# fetch PYTHON PACKAGE...: by pip, or the test is skipped.
fetch() {
  local python=$1
  shift
  "$python" -m pip install --quiet "$@" >"$work/pip.log" 2>&1 || {
    tail -3 "$work/pip.log"
    skip "pip cannot install $*"
  }
}

fresh_venv() {
  rm -rf "$work/venv"
  python3 -m venv "$work/venv" || skip "python3 -m venv does not work (Debian: apt install python3-venv)"
}

has_torch() {
  "$1" -c 'from importlib.metadata import version as v
v("torch"); raise SystemExit(int(v("transformers").split(".")[0]) < 5)' 2>/dev/null
}

torch_python() {  # sets $python to an interpreter that has torch and transformers 5
  if [ -z "${MOERT_PYTHON:-}" ] && has_torch python3; then MOERT_PYTHON=python3; fi
  local venv=${MOERT_TEST_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/moert-test-venv}
  python=${MOERT_PYTHON:-$venv/bin/python}
  if [ -z "${MOERT_PYTHON:-}" ]; then
    mkdir -p "$(dirname "$venv")"
    exec 9>"$venv.lock"
    flock 9
    if [ ! -e "$venv/complete" ]; then
      local free
      free=$(df -Pk "$(dirname "$venv")" | awk 'NR == 2 { print int($4 / 1048576) }')
      [ "$free" -ge 12 ] || skip "torch takes 12 GiB of disk, $(dirname "$venv") has $free"
      rm -rf "$venv"
      python3 -m venv "$venv" || skip "python3 -m venv does not work"
      fetch "$python" torch "transformers>=5" safetensors accelerate numpy matplotlib
      touch "$venv/complete"
    fi
    flock -u 9
  fi
  "$python" -c 'import torch, transformers' || skip "$python has no torch and transformers 5"
  export HF_HUB_OFFLINE=1 TQDM_DISABLE=1 XDG_CACHE_HOME=$work/cache
}

case $test in
  binding)
    use_tree
    python3 "$here/binding_test.py" -v 2>&1 ;;
  wheel)
    fresh_venv
    python=$work/venv/bin/python
    fetch "$python" "scikit-build-core>=0.10"
    "$python" -m pip install --quiet --no-build-isolation --no-deps "$source" \
      -C "cmake.define.MOERT_WHEEL_FROM=$build"
    cd "$work"  # nothing of the source tree is looked at
    text=$("$python" -m moert doctor)
    echo "$text"
    [[ $text == *"$work/venv/lib/"*"/moert/libmoert.so"* ]]
    export XDG_CACHE_HOME=$work/cache
    text=$("$python" -m moert run generate --model "$source/examples/models/tiny-moe" \
           --budget 25% --max-tokens 16 --prompt "Question: 12 x 7?" 2>&1)
    echo "$text"
    [[ $text == *"room for 64 of 256 experts"* ]]
    "$python" "$here/binding_test.py" 2>&1
    "$python" "$source/examples/python/hello.py" | tail -2 ;;
  clean_wheel)
    [ -n "${MOERT_TEST_CLEAN_WHEEL:-}" ] || skip "it compiles everything again; set MOERT_TEST_CLEAN_WHEEL=1"
    fresh_venv
    python=$work/venv/bin/python
    fetch "$python" auditwheel
    rm -rf "$work/clone" "$work/wheel"
    git clone --quiet "$source" "$work/clone" 2>/dev/null || skip "$source is no git clone"
    fetch "$python" "scikit-build-core>=0.10"
    start=$SECONDS
    "$python" -m pip wheel --quiet --no-build-isolation --no-deps "$work/clone" -w "$work/wheel" \
      -C cmake.define.MOERT_CUDA=OFF
    echo "built in $((SECONDS - start)) s: $(ls "$work/wheel")"
    verdict=$("$python" -m auditwheel show "$work"/wheel/*.whl)
    echo "$verdict"
    [[ $verdict == *manylinux_2_* ]]
    "$python" -m pip install --quiet --no-deps "$work"/wheel/*.whl
    cd "$work" && "$python" -m moert doctor ;;
  transformers)
    torch_python
    use_tree
    "$python" "$here/transformers_test.py" -v 2>&1 ;;
  quantized | ways)
    torch_python
    use_tree
    "$python" "$here/${test}_test.py" -v 2>&1 ;;
  zoo | reader)
    torch_python
    use_tree
    "$python" "$here/${test}_test.py" 2>&1 ;;
  cuda)
    torch_python
    use_tree
    text=$("$python" "$here/cuda_test.py" -v 2>&1) || { echo "$text"; exit 1; }
    echo "$text"
    [[ $text != *"OK (skipped"* ]] || skip "no CUDA device, or a library without CUDA" ;;
  lm_eval)
    torch_python
    if ! "$python" -c 'import lm_eval' 2>/dev/null; then
      [ -z "${MOERT_PYTHON:-}" ] || skip "$python has no lm_eval"
      fetch "$python" "lm_eval>=0.4.9"
    fi
    use_tree
    "$python" "$here/lm_eval_test.py" "$source/examples/models/tiny-moe" 2>&1 ;;
  distributed)
    torch_python
    use_tree
    "$python" "$here/distributed_test.py" -v 2>&1 ;;
  vllm)
    torch_python
    "$python" -c 'import vllm' 2>/dev/null || skip "$python has no vllm that can be imported"
    use_tree
    "$python" "$here/vllm_test.py" -v 2>&1 ;;
  vllm_engine)
    torch_python
    "$python" -c 'from vllm.platforms import current_platform as p; raise SystemExit(not p.is_cpu())' \
      >"$work/vllm.log" 2>&1 || skip "$python has no vllm for the CPU (docs/guide/vllm.md)"
    use_tree
    "$python" "$here/vllm_engine_test.py" "$source/examples/models/tiny-moe" ;;
  explore)
    torch_python
    use_tree
    cd "$work"
    "$python" "$source/examples/python/explore.py" "$source/examples/models/tiny-moe" \
      --budgets 25% 100% --strategies on-demand fate --tokens 8 --plot "$work/explore.png" 2>&1
    [ -s "$work/explore.png" ] ;;
  *)
    echo "unknown test $test"
    exit 2 ;;
esac
