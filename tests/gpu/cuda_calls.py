#!/usr/bin/env python3
"""Every CUDA call of the library is in cuda_calls.txt, and every line there is a call.

  cuda_calls.py ROOT
"""
import pathlib
import re
import sys

# The C++ header's form of a call.
TEMPLATES = {"cudaLaunchKernelEx": "cudaLaunchKernelExC"}


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    listed = set()
    for line in (root / "tests/gpu/cuda_calls.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            listed.add(line.split()[1])
    made = set()
    for folder in ("lib", "kernels/cuda"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cc", ".h", ".cu", ".cuh"):
                continue
            text = re.sub(r"//[^\n]*", "", path.read_text())
            if "<<<" in text:
                print(f"{path}: a launch with <<<>>>; LaunchKernel of primitives/launch.cuh can fail")
                return 1
            for name in re.findall(r"\b(cuda[A-Z]\w*)\s*\(", text):
                made.add(TEMPLATES.get(name, name))
    for name in sorted(made - listed):
        print(f"{name}: called by the library, not in tests/gpu/cuda_calls.txt")
    for name in sorted(listed - made):
        print(f"{name}: in tests/gpu/cuda_calls.txt, not called by the library")
    return int(made != listed)


if __name__ == "__main__":
    sys.exit(main())
