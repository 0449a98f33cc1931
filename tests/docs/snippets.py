#!/usr/bin/env python3
"""Compiles the blocks of the documents that stand behind `<!-- compile:NAME -->`.

    snippets.py CXX CC INCLUDE...

tests/docs/snippets/NAME.cc or .c is what surrounds the block: its line @BLOCK@ is replaced by it. Nothing is
linked.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import pages

FRAMES = pathlib.Path(__file__).resolve().parent / "snippets"


def blocks():
    for path in pages.pages():
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"<!-- compile:([\w-]+) -->\n```\w+\n(.*?)```", text, re.S):
            yield f"{path.relative_to(pages.ROOT)}:{text.count(chr(10), 0, match.start()) + 1}", match[1], match[2]


def main():
    cxx, cc, *includes = sys.argv[1:]
    flags = [f"-I{folder}" for folder in includes]
    count = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        # The headers of C++ frames are most of a compilation: once for all.
        header = pathlib.Path(folder) / "all.h"
        lines = {line for frame in FRAMES.glob("*.cc") for line in re.findall('#include "moert/.*', frame.read_text(encoding="utf-8"))}
        header.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
        common = ["-fsyntax-only", "-Wall", "-Wno-unused", *flags]
        subprocess.run([cxx, "-std=c++20", *common[1:], "-x", "c++-header", str(header)], check=True)
        for where, name, block in blocks():
            frame = next(FRAMES.glob(f"{name}.c*"))
            source = pathlib.Path(folder) / frame.name
            source.write_text(frame.read_text(encoding="utf-8").replace("@BLOCK@", block), encoding="utf-8")
            compiler = [cxx, "-std=c++20", "-include", str(header)] if frame.suffix == ".cc" else [cc, "-std=c99"]
            done = subprocess.run([*compiler, *common, str(source)], capture_output=True, text=True)
            count += 1
            if done.returncode:
                failed += 1
                print(f"{where}: does not compile\n{done.stderr}")
    used = {name for _, name, _ in blocks()}
    for frame in FRAMES.glob("*.c*"):
        if frame.stem not in used:
            failed += 1
            print(f"{frame.name}: no page has a block for it")
    print(f"{count - failed} of {count} blocks compile")
    sys.exit(bool(failed or not count))


if __name__ == "__main__":
    main()
