#!/usr/bin/env python3
"""Each file of the library sees what it uses, alone: a name that a header of ours declares is used only where a header
with it is included, directly or by another. Unity builds, which compile a folder at once, hide what is missing.
includes.py [SOURCE_DIR]"""
import functools
import os
import re
import sys

import layers

CHECKED = ("lib/", "include/", "capi/src/", "examples/host/", "examples/cli/")
FOLDERS = ("include", "lib", "kernels", "capi", "examples", "tests")
# Declared at the beginning of a line, which is where the style guide puts what a namespace holds.
DECLARED = [re.compile(pattern, re.M) for pattern in (
    r"^(?:class|struct|enum class|union)\s+(?:alignas\(\d+\)\s+)?([A-Z]\w+)\b(?!\s*;)",
    r"^using\s+([A-Z]\w+)\s*=", r"^#define\s+(MOERT_\w+)",
    r"^(?:inline |static |constexpr )+[\w:<>]+\s+(k[A-Z]\w+)\b",
    r"^(?!using|return|class|struct|enum)[a-zA-Z][\w:<>,*& ]*?[ &*]([A-Z]\w+)\(")]
# The same anywhere: members and what functions hold.
INSIDE = [re.compile(p.pattern.replace("^", r"^\s*", 1), re.M) for p in DECLARED] + [
    re.compile(r"\b(?:class|struct|enum|enum class|typename|using)\s+([A-Z]\w+)"), re.compile(r"\b(k[A-Z]\w+)\s*[=,}\[{]")]
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.S)
WORD = re.compile(r"(?<![\w.>:])(?:moert::)?([A-Z][a-z]\w{2,}|k[A-Z]\w{3,}|MOERT_\w+)\b")


class Tree:
    def __init__(self, root):
        self.root, self.code, self.included = root, {}, {}
        for top in FOLDERS:
            for folder, _, files in os.walk(os.path.join(root, top)):
                for file in files:
                    if file.endswith(layers.SOURCES + (".inc",)):
                        self.add(os.path.relpath(os.path.join(folder, file), root))
        self.declared = {path: self.declarations(path) for path in self.code if path.endswith((".h", ".cuh"))}

    def add(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as text:
            code = text.read()
        names = layers.INCLUDE.findall(code)
        self.included[path] = [p for p in (self.resolve(path, name) for name in names) if p]
        self.code[path] = COMMENT.sub(" ", re.sub(r"(?m)^\s*#\s*include.*$", "", code))

    def resolve(self, path, name):
        for folder in ("examples", "tests"):
            candidate = os.path.normpath(os.path.join(folder, name))
            if os.path.isfile(os.path.join(self.root, candidate)) and path.startswith(("examples", "tests")):
                return candidate
        return layers.resolve(self.root, path, name)

    def declarations(self, path):
        return {name for pattern in DECLARED for name in pattern.findall(self.code[path])}

    @functools.lru_cache(maxsize=None)
    def inside(self, path):
        return frozenset(name for pattern in INSIDE for name in pattern.findall(self.code[path]))

    @functools.lru_cache(maxsize=None)
    def seen(self, path):
        """All files that a file includes."""
        found, left = set(), [path]
        while left:
            for other in self.included.get(left.pop(), ()):
                if other not in found:
                    found.add(other)
                    left.append(other)
        return frozenset(found)


def check(root):
    tree, declares, problems, count = Tree(root), {}, [], 0
    for path, names in tree.declared.items():
        if path.startswith(CHECKED):
            for name in names:
                declares.setdefault(name, set()).add(path)
    for path, code in sorted(tree.code.items()):
        if not path.startswith(CHECKED) or path.endswith((".cu", ".cuh")):  # which no unity build joins
            continue
        seen = tree.seen(path) | {path}
        own = frozenset().union(*(tree.inside(p) for p in seen))
        for name in sorted(set(WORD.findall(code))):
            if name not in declares:
                continue
            count += 1
            if name not in own:
                problems.append(f"{path}: uses {name}, and does not include {' or '.join(sorted(declares[name]))}")
    return problems, count


if __name__ == "__main__":
    sys.exit(layers.run(check, "names", "of them not included"))
