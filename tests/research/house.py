#!/usr/bin/env python3
"""Measures the shape of the source tree for docs/internals/architecture.md.

    house.py measure NAME [REV]   stores the figures of a commit (or of this tree) as column NAME
    house.py show                 prints the last column

Columns are kept in docs/results/data/house.json: first `before` (8a21265), then `after`.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import report

SOURCES = (".h", ".cc", ".c", ".cu", ".cuh")
LONG = 60  # lines of a function
TEMPLATE = r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>"
# A line of lib/engine that asks where experts execute or whether anything does.
MODE = re.compile(r"(?:\bif\b|\?|&&|\|\||\bwhile\b|!).*\b(?:device_?|backend_?|backend\(\)|simulate[sd]?_?|simulation|"
                  r"kCuda|kCpu)\b|\b(?:device_?|backend_?|simulate[sd]?_?|kCuda|kCpu)\b.*(?:==|!=|&&|\|\||\?)")


def files(root, *folders):
    return [p for f in folders for p in sorted((root / f).rglob("*")) if p.suffix in SOURCES and p.is_file()]


def lines(paths):
    return sum(p.read_text(encoding="utf-8").count("\n") for p in paths)


def without_comments(text):
    """Comments and literals blanked, lines kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def functions(path):
    """(name, lines) of every function body defined at namespace or class level."""
    text = re.sub(r"^\s*#.*(?:\\\n.*)*", lambda m: re.sub(r"[^\n]", " ", m[0]),
                  without_comments(path.read_text(encoding="utf-8")), flags=re.M)
    scopes, begin, found = [], 0, []
    for i, c in enumerate(text):
        if c == "{":
            head = text[begin:i]
            outer = all(kind == "scope" for kind, _, _ in scopes)
            if outer and re.search(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$", head):
                scopes.append(("scope", 0, ""))
            elif outer and ")" in head and "=" not in re.sub(TEMPLATE, "", head).split("(")[0]:
                first = begin + len(head) - len(head.lstrip())
                scopes.append(("function", first, re.sub(r"\s+", " ", head.strip().split("(")[0]).split(" ")[-1]))
            else:
                scopes.append(("block", 0, ""))
            begin = i + 1
        elif c == "}":
            if scopes:
                kind, first, name = scopes.pop()
                if kind == "function":
                    found.append((name, text.count("\n", first, i) + 1))
            begin = i + 1
        elif c == ";":
            begin = i + 1
    return found


def folder_includes(root):
    """Pairs of folders of lib, the first of which includes from the second."""
    lib = root / "lib"
    pairs = set()
    for path in files(root, "lib"):
        mine = path.relative_to(lib).parts[0]
        for target in re.findall(r'#include "([\w/]+)/', path.read_text(encoding="utf-8")):
            other = target.split("/")[0]
            if other != mine and (lib / other).is_dir():
                pairs.add((mine, other))
    return pairs


def private_includes(root):
    """Files under examples that include what is not installed: lib, kernels, tests."""
    count = 0
    for path in files(root, "examples"):
        targets = re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
        count += any((root / "lib" / t).exists() or ((root / t).exists() and not t.startswith("examples/"))
                     for t in targets)
    return count


def measure(root):
    headers = files(root, "include", "capi/include")
    product = files(root, "lib", "kernels", "capi")
    pairs = folder_includes(root)
    rows = {"lines, lib": lines(files(root, "lib"))}
    for folder in sorted(p.name for p in (root / "lib").iterdir() if p.is_dir()):
        rows[f"lines, lib/{folder}"] = lines(files(root, f"lib/{folder}"))
    for folder in ("kernels", "capi", "include", "examples", "tests"):
        rows[f"lines, {folder}"] = lines(files(root, folder))
    policy = root / "include" / "moert" / "policy.h"
    engine = [line for p in files(root, "lib/engine")
              for line in without_comments(p.read_text(encoding="utf-8")).split("\n")]
    found = [n for p in product for _, n in functions(p)]
    rows |= {
        "public headers": len(headers),
        "lines of public headers": lines(headers),
        "virtuals in policy.h": len(re.findall(r"\bvirtual\b(?!\s*~)", policy.read_text(encoding="utf-8")))
        if policy.exists() else 0,
        f"functions over {LONG} lines": sum(n > LONG for n in found),
        "longest function, lines": max(found),
        "files over 400 lines": sum(lines([p]) > 400 for p in product),
        "includes across folders of lib, pairs": len(pairs),
        "folders of lib that include each other, pairs": sum((b, a) in pairs for a, b in pairs) // 2,
        "lines of lib/engine that branch on backend or simulation": sum(bool(MODE.search(x)) for x in engine),
        "files under examples with private includes": private_includes(root),
        "files under examples": len(files(root, "examples")),
    }
    return rows


def show():
    data = json.loads((report.DATA / "house.json").read_text(encoding="utf-8"))
    columns = list(data)[-1:]
    keys = [key for key in data[columns[0]]["figures"] if not key.startswith("lines, lib/")]
    order = [k for k in keys if not k.startswith("lines, ")] + [k for k in keys if k.startswith("lines, ")]
    rows = [[key] + [str(data[c]["figures"].get(key, "-")) for c in columns] for key in order]
    head = ["", *(data[c]["commit"][:7] for c in columns)]
    return "\n".join(["| " + " | ".join(head) + " |", "|---|" + "--:|" * len(columns)] +
                     ["| " + " | ".join(row) + " |" for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "show"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("revision", nargs="?", default="HEAD")
    args = parser.parse_args()
    if args.what == "show":
        print(show())
        return
    commit = subprocess.run(["git", "rev-parse", args.revision], cwd=report.ROOT, check=True, text=True,
                            capture_output=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=report.ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        figures = measure(pathlib.Path(folder))
    path = report.DATA / "house.json"
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    data[args.name] = {"commit": commit, "figures": figures}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
