#!/usr/bin/env python3
"""Files that a unity build compiles as one must not define the same name in an unnamed namespace, nor one
that a type of a header has. Fails naming both, for cmake/Unity.cmake's list of files that stay alone.
unity.py [SOURCE_DIR]"""
import collections
import os
import re
import sys

ISA = re.compile(r"_(avx2|avx512|avx512bf16|vnni|amx)\.cc$")
DEFINED = [re.compile(p) for p in (r"(?:struct|class|enum class|enum)\s+(\w+)", r"using\s+(\w+)\s*=",
                                   r".*?\b(k[A-Z]\w*)(?:\[\w*\])?\s*(?:=|\{)",
                                   r".*?([A-Z]\w*)\(")]


def defined(text):
    """Names at the outermost level of unnamed namespaces."""
    names = set()
    for body in re.findall(r"^namespace \{\n(.*?)^\}  // namespace\n", text, re.S | re.M):
        for line in body.splitlines():
            if not line or line[0] in " /}":
                continue
            for pattern in DEFINED:
                found = pattern.match(line)
                if found:
                    names.add(found.group(1))
                    break
    return names


def types(root):
    """{name: header} of the types that headers declare in the library's namespace."""
    found = {}
    for top in ("include", "lib"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in files:
                if not name.endswith(".h"):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    for match in re.finditer(r"^(?:class|struct|enum class|using) (?!alignas)(\w+)", file.read(), re.M):
                        found.setdefault(match.group(1), name)
    return found


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..")
    with open(os.path.join(root, "cmake/Unity.cmake"), encoding="utf-8") as file:
        alone = re.search(r"MOERT_UNITY_ALONE\s+(.*?)\)", file.read(), re.S).group(1).split()
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for top in ("lib", "capi/src", "examples/host", "examples/cli"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            if "cuda" in folder:
                continue
            for name in sorted(f for f in files if f.endswith(".cc") and not ISA.search(f)):
                path = os.path.relpath(os.path.join(folder, name), root)
                if any((path + "/").startswith(a + "/") for a in alone):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    for found in defined(file.read()):
                        groups[os.path.dirname(path)][found].append(path)
    clashes = [f"{name}: {', '.join(paths)}" for group in groups.values()
               for name, paths in sorted(group.items()) if len(paths) > 1]
    declared = types(root)
    for group in groups.values():
        clashes += [f"{name}: {', '.join(paths)} and the type of {declared[name]}"
                    for name, paths in sorted(group.items()) if name in declared]
    # These two are programs that are not built as one.
    clashes = [c for c in clashes if not re.search(r"examples/cli/(bench|sim)/", c)]
    print("\n".join(clashes) or "no clash")
    return 1 if clashes else 0


sys.exit(main())
