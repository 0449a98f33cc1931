#!/usr/bin/env python3
"""Includes follow the path of a batch: a folder includes itself and what is below it, never what is
above. Fails on an include that runs back up, on a folder or public header that no layer names, on a
path that does not exist, and on words that the library does without.   layers.py [SOURCE_DIR]"""
import os
import re
import sys

# Bottom first. Folders, then the public headers that declare what these folders (or hosts) define.
LAYERS = [
    ("rules", ["lib/rules"], ""),
    ("base", ["lib/base"], "tools/env tools/machine thread_pool tensor allocator tools/profile"),
    ("quant", ["lib/quant"], "scheme"),
    ("model", ["lib/model"], "model"),
    ("kernels", ["kernels"], ""),
    ("gemm", ["lib/gemm"], "mixed_group_gemm"),
    ("source", ["lib/source"], "source/*"),
    ("checkpoint", ["lib/checkpoint"],
     "offline/attention_config offline/checkpoint offline/gguf offline/hf_config offline/linear_weight "
     "offline/quantization_config offline/rope_config offline/tensor_account offline/tensor_names"),
    ("pack", ["lib/pack"], "offline/calibration offline/pack offline/plan"),
    ("policy", [], "policy promise rules tools/trace"),  # what policies and sinks are asked and told
    ("trace", ["lib/trace"], ""),
    ("transfer", ["lib/transfer"], "parallel/peer_tier"),
    ("store", ["lib/store"], "expert_store"),
    ("route", ["lib/route"], "router"),
    ("plan", ["lib/plan"], "scheduler"),
    ("prefetch", ["lib/prefetch"], "prefetcher"),
    ("strategies", ["lib/strategies"], "strategy strategy_params"),
    ("options", [], "options backend"),
    ("exec", ["lib/exec"], ""),
    ("offline", ["lib/offline"], "offline/*"),
    ("engine", ["lib/engine"], "engine stats tools/auto_strategy tools/metrics parallel/shard"),
    ("advise", ["lib/advise"], "tools/prompt_rows tools/version_choice tools/warm_start"),
    ("parallel", ["lib/parallel"], "parallel/collectives parallel/expert_parallel parallel/placement"),
    ("replay", ["lib/replay"], "tools/replay parallel/parallel_replay"),
    ("capi", ["capi"], ""),
]
# These decide and keep accounts; the arithmetic of products is the business of lib/gemm and lib/exec.
WITHOUT_KERNELS = ("rules", "model", "source", "checkpoint", "pack", "trace", "transfer", "store", "route",
                   "plan", "prefetch", "strategies", "engine", "advise", "parallel", "replay")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
# Where memory runs out under these, the C++ runtime or libc ends the process.
WITHOUT = {r"\b(?:recursive_)?directory_iterator\b|\bremove_all\b": "use base/folder.h",
           r"\bthread_local\b": "a library that a running process loads takes memory for it"}
SOURCES = (".h", ".cc", ".c", ".cu", ".cuh")


def layer_of(path):
    """Index into LAYERS of a path from the root, or None."""
    for i, (_, folders, headers) in enumerate(LAYERS):
        if any(path.startswith(folder + "/") for folder in folders):
            return i
        for header in headers.split():
            if header.endswith("*"):
                if path.startswith("include/moert/" + header[:-1]):
                    return i
            elif path == f"include/moert/{header}.h":
                return i
    return None


def resolve(root, path, name):
    """What an include names, as a path from the root; None: nothing of ours."""
    for folder in ("", "lib", "include", "capi/include", "capi/src", os.path.dirname(path)):
        candidate = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def check(root):
    problems = []
    count = 0
    for top in ("include", "lib", "kernels", "capi"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for file in sorted(files):
                if not file.endswith(SOURCES):
                    continue
                path = os.path.relpath(os.path.join(folder, file), root)
                mine = layer_of(path)
                if mine is None:
                    problems.append(f"{path}: belongs to no layer of tests/layers.py")
                    continue
                with open(os.path.join(root, path), encoding="utf-8") as text:
                    code = text.read()
                names = INCLUDE.findall(code)
                for word, why in WITHOUT.items():
                    for found in re.findall(word, re.sub(r"//[^\n]*", "", code)):
                        problems.append(f"{path}: {found}: {why}")
                for name in names:
                    other = resolve(root, path, name)
                    if other is None:
                        if name.startswith(("moert/", "kernels/")):
                            problems.append(f"{path}: includes {name}, which does not exist")
                        continue
                    count += 1
                    theirs = layer_of(other)
                    if theirs is not None and theirs > mine:
                        problems.append(f"{path} ({LAYERS[mine][0]}) includes {other} "
                                        f"({LAYERS[theirs][0]}), which is above it")
                    if LAYERS[mine][0] in WITHOUT_KERNELS and other.startswith("kernels/"):
                        problems.append(f"{path} ({LAYERS[mine][0]}) includes {other}: kernels are "
                                        "reached through lib/gemm and lib/exec")
                    if path.startswith("include/") and not other.startswith("include/"):
                        problems.append(f"{path}: is installed and includes {other}, which is not")
    return problems, count


def run(check_tree, looked_at, wrong):
    """Prints what a check of SOURCE_DIR finds: its problems, and how much it looked at. The status to exit with."""
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    problems, count = check_tree(root)
    for problem in problems:
        print(problem)
    print(f"{count} {looked_at}, {len(problems)} {wrong}")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(run(check, "includes", "against the layers"))
