#!/usr/bin/env python3
"""C can do as much as the C++ API: every public function, method and field of include/moert/ has a line in
capabilities.txt that names its counterpart in the C headers, or says why there is none.

    capabilities.py CXX_INCLUDE C_INCLUDE LIST          checks
    capabilities.py --names CXX_INCLUDE                 prints what the C++ headers declare

A line is `C++ name: C names` or `C++ name: - reason`. `Name::*` and `Name.*` stand for all methods and
fields of a class, `header.h` and `folder/` for everything in them. A line that stands for nothing fails.
"""
import pathlib
import re
import sys

ACCESS = re.compile(r"^\s*(public|private|protected)\s*$")


def strip(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^[ \t]*#[^\n]*", "", text, flags=re.M)
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', text)


def without_templates(head):
    while (shorter := re.sub(r"<[^<>]*>", "", head)) != head:
        head = shorter
    return head


def declared(head, scope):
    """The name that a declaration gives, as the list spells it; None for what is no capability."""
    head = without_templates(head).strip()
    if not head or re.match(r"(using|friend|template|class|struct|enum|typedef|static_assert)\b", head):
        return None
    if "operator" in head or "= delete" in head or "= default" in head:
        return None
    before, paren, _ = head.partition("(")
    name = (re.findall(r"~?\w+", before.split("=")[0]) or [""])[-1]
    if not name or name.startswith("~") or name == scope or re.match(r"k[A-Z]", name):
        return None
    if scope is None:
        return name if paren else None
    return f"{scope}::{name}" if paren else f"{scope}.{name}"


def names(text):
    """What a header declares in public, in order."""
    found = []
    stack = []  # (kind, class name, access): namespace, class, other
    head, parens = "", 0
    for c in strip(text):
        kind, scope, access = stack[-1] if stack else ("namespace", None, "public")
        visible = kind in ("namespace", "class") and access == "public"
        if c in "()":
            parens += 1 if c == "(" else -1
        elif parens or kind == "skip" and c not in "{}":
            pass
        elif c == "{":
            shape = without_templates(head)
            owner = re.search(r"\b(class|struct)\s+(?:\w+\s+)*?(\w+)\s*(?:final\s*)?(?::[^()]*)?$", shape.strip())
            if re.search(r"\bnamespace\b", shape):
                stack.append(("namespace", None, "public"))
            elif owner and "(" not in shape:
                nested = f"{scope}.{owner[2]}" if scope else owner[2]
                open_to_all = visible and owner[1] == "struct" and "public" or visible and "private" or "private"
                stack.append(("class", nested, open_to_all if owner[1] == "struct" else "private"))
            else:
                if visible and "(" in shape and "=" not in shape.partition("(")[0]:
                    found.append(declared(head, scope))
                    head = ""
                stack.append(("skip", scope, head))
            if stack[-1][0] != "skip":
                head = ""
            continue
        elif c == "}":
            closed = stack.pop()
            head = closed[2] if closed[0] == "skip" else ""
            continue
        elif c == ";":
            if visible:
                found.append(declared(head, scope))
            head = ""
            continue
        elif c == ":" and ACCESS.match(head):
            stack[-1] = (kind, scope, head.strip())
            head = ""
            continue
        if kind != "skip":
            head += c
    return list(dict.fromkeys(n for n in found if n))


def main():
    if sys.argv[1] == "--names":
        for path in sorted(pathlib.Path(sys.argv[2], "moert").glob("**/*.h")):
            print(f"# {path.relative_to(pathlib.Path(sys.argv[2], 'moert'))}")
            print("\n".join(names(path.read_text(encoding="utf-8"))))
        return
    cxx, c, table = map(pathlib.Path, sys.argv[1:4])
    c_text = "\n".join(strip(p.read_text(encoding="utf-8")) for p in (c / "moert/c").glob("*.h"))
    c_names = set(re.findall(r"\b(?:moert|MOERT)_\w+", c_text))
    for struct, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", c_text, re.S):
        c_names.update(f"{struct}.{field}" for field in re.findall(r"\b(\w+)\)?\s*(?:\(|;)", body))
    lines = {}
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            key, _, value = line.partition(": ")
            lines[key.strip()] = (number, value.strip())
    used, errors, counted = set(), [], 0
    for path in sorted((cxx / "moert").glob("**/*.h")):
        header = str(path.relative_to(cxx / "moert"))
        for name in names(path.read_text(encoding="utf-8")):
            counted += 1
            group = re.sub(r"(::|\.)\w+$", r"\1*", name)
            folder = header[:header.rfind("/") + 1]
            matches = [k for k in (name, group, header, folder) if k in lines]
            used.update(matches[:1])
            if not matches:
                errors.append(f"{header}: {name} has no line in {table.name}: name its C counterpart, or why there is none")
    for key, (number, value) in lines.items():
        where = f"{table.name}:{number}: {key}"
        if key not in used:
            errors.append(f"{where}: the C++ headers declare nothing of that name")
        elif value.startswith("-"):
            if len(value) < 8:
                errors.append(f"{where}: no reason")
        else:
            for word in value.split():
                if word not in c_names:
                    errors.append(f"{where}: the C headers have no {word}")
    print("\n".join(errors) or f"{counted} names of the C++ headers, {len(lines)} lines")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
