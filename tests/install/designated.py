#!/usr/bin/env python3
"""Prints a program that makes every aggregate of the public headers by a designated initializer of one
member: under -Wextra a member without an initializer of its own is a warning at the host's.

    designated.py INCLUDE_DIR
"""
import pathlib
import re
import sys

MEMBER = re.compile(r"[\w:<>(), *&]+?[ *&](\w+)(?:\[\w+\])?(?: = [^;]+)?;$")
NOT_MEMBERS = ("using", "static", "friend", "typedef", "return")


def aggregates(text):
    """(name, first member) of the structs that have no constructor and no base."""
    scopes = []  # [kind, name, first member, aggregate]
    for line in re.sub(r"//.*", "", text).splitlines():
        code = line.strip()
        opened = re.match(r"(namespace|struct|class)(?: (\w+))?(?: final)?( : .*)? *\{$", code)
        if opened:
            scopes.append([opened[1], opened[2], None, opened[1] == "struct" and not opened[3]])
        elif code.startswith("}"):
            if not scopes:
                continue
            kind, name, first, aggregate = scopes.pop()
            if kind == "struct" and aggregate and first and all(s[0] != "class" for s in scopes):
                yield "::".join([s[1] for s in scopes if s[1]] + [name]), first
        elif code.endswith("{"):
            scopes.append(["code", None, None, False])
        elif scopes and scopes[-1][0] == "struct":
            scope = scopes[-1]
            if re.search(rf"\bvirtual\b|(?:^|explicit ){scope[1]}\(", code):
                scope[3] = False
            member = None if code.startswith(NOT_MEMBERS) or "operator" in code else MEMBER.match(code)
            if member and scope[2] is None and not re.search(r"\)(?: const)?;$", code):
                scope[2] = member[1]


def main():
    include = pathlib.Path(sys.argv[1])
    headers = sorted(path.relative_to(include) for path in include.glob("moert/**/*.h") if path.parent.name != "c")
    made = [found for path in headers for found in aggregates((include / path).read_text())]
    for path in headers:
        print(f'#include "{path}"')
    for number, (name, member) in enumerate(made):
        print(f"{name} Make{number}() {{ return {{.{member} = {{}}}}; }}")
    print(f"{len(made)} structs", file=sys.stderr)
    sys.exit(len(made) < 50)


if __name__ == "__main__":
    main()
