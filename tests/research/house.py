#!/usr/bin/env python3
"""Measures the shape of the source tree for docs/internals/architecture.md.

    house.py measure NAME [REV]   stores the figures of a commit as column NAME, before or after
    house.py show                 prints the table of `after`

Columns are kept in docs/results/data/house.json: `before` is 39fe976a. To bring the page up to date:

    house.py measure after && pages.py
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


def includes_of(root, path, found):
    """Adds the headers that a file includes of include/, kernels/ and lib/, theirs too."""
    for target in re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8")):
        for base in (root / "include", root / "lib", root):
            header = base / target
            if header.is_file() and header not in found:
                found.add(header)
                includes_of(root, header, found)
    return found


def counted(paths, pattern):
    return sum(len(re.findall(pattern, without_comments(p.read_text(encoding="utf-8")))) for p in paths)


def fields_of(path, struct):
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", without_comments(path.read_text(encoding="utf-8")), re.S)
    return len(re.findall(r"^  \w[\w:<> ]* \w+ = [^;(]*;", body[1], re.M)) if body else 0


def deciding(root):
    """Kernel files that decide about misses: those that launch and include serve_call.cuh, directly or not."""
    return sum("__global__" in p.read_text(encoding="utf-8") and
               any(h.name == "serve_call.cuh" for h in includes_of(root, p, set()))
               for p in files(root, "kernels") if p.suffix == ".cu")


def folders(root, of):
    return [p.name for p in sorted((root / of).iterdir()) if p.is_dir()] if (root / of).is_dir() else []


def measure(root):
    core, headers = root / "include" / "moert", files(root, "include", "capi/include")
    product = files(root, "lib", "kernels", "capi")
    pairs = folder_includes(root)
    virtual = r"\bvirtual\b(?!\s*~)"
    engine = [line for p in files(root, "lib/engine")
              for line in without_comments(p.read_text(encoding="utf-8")).split("\n")]
    found = [n for p in product for _, n in functions(p)]
    core_headers = sorted(core.glob("*.h"))
    to_kernels = sum(any(t.startswith("kernels/") for t in re.findall(r'#include "([^"]+)"', p.read_text(encoding="utf-8")))
                     for p in files(root, "lib/store", "lib/plan", "lib/strategies", "lib/rules"))
    rows = {f"lines, {f}": lines(files(root, f)) for f in ("lib", "kernels", "include", "capi")}
    rows["lines, these four"] = sum(rows.values())
    rows |= {f"lines, {f}": lines(files(root, f)) for f in ("examples", "tests")}
    rows |= {f"lines, {of}/{f}": lines(files(root, f"{of}/{f}"))
             for of in ("lib", "lib/exec", "kernels", "kernels/cuda") for f in folders(root, of)}
    rows |= {
        "public headers, C too": len(headers),
        "their lines": lines(headers),
        "headers in include/moert itself": len(core_headers),
        "lines of those": lines(core_headers),
        "headers that moert/engine.h brings": len(includes_of(root, core / "engine.h", set())),
        "fields of PolicyTraits": fields_of(core / "policy.h", "PolicyTraits"),
        "virtual functions in policy.h": counted([core / "policy.h"], virtual),
        "virtual functions of Executor": counted([root / "lib" / "exec" / "executor.h"], virtual),
        "dynamic_casts": counted(product, r"\bdynamic_(?:pointer_)?cast\b"),
        "kernel files that decide about misses": deciding(root),
        "files of store, plan, strategies that include kernels": to_kernels,
        f"functions over {LONG} lines": sum(n > LONG for n in found),
        "files over 400 lines": sum(lines([p]) > 400 for p in product),
        "folders of lib that include each other, pairs": sum((b, a) in pairs for a, b in pairs) // 2,
        "lines of lib/engine that branch on backend or simulation": sum(bool(MODE.search(x)) for x in engine),
        "files under examples with private includes": private_includes(root),
    }
    return rows


# Rows of the page.
SHOWN = {
    "lines: lib, kernels, include, capi": [f"lines, {f}" for f in ("lib", "kernels", "include", "capi")],
    "lines: examples, tests": ["lines, examples", "lines, tests"],
    "public headers, C too; their lines": ["public headers, C too", "their lines"],
    "headers in include/moert itself; their lines": ["headers in include/moert itself", "lines of those"],
    "functions over 60, files over 400 lines": [f"functions over {LONG} lines", "files over 400 lines"],
}


def show():
    """The column `after` as a table; most figures are in the JSON alone."""
    stored = json.loads((report.DATA / "house.json").read_text(encoding="utf-8"))["after"]
    figures = stored["figures"]
    rows = [f"| {name} | {'; '.join(f'{figures[k]:,}' for k in part)} |" for name, part in SHOWN.items()]
    return "\n".join([f"| at {stored['commit'][:8]} | |", "|---|--:|", *rows])


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
