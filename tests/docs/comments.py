#!/usr/bin/env python3
"""Checks comments: no sentence begins with Of, Whose, Who or What (pages.RIDDLE), and a file that one names with
its folder exists.

    comments.py [FOLDER...]    lib, kernels, include, capi, examples, tests and cmake, if none is named
"""
import pathlib
import re
import sys

import pages

FOLDERS = ("lib", "kernels", "include", "capi", "examples", "tests", "cmake")
LINE_MARK = {"//": (".h", ".cc", ".c", ".cu", ".cuh", ".inc", ".rs", ".go"), "#": (".py", ".sh", ".cmake", ".txt")}


def mark_of(path):
    return next((mark for mark, suffixes in LINE_MARK.items() if path.suffix in suffixes), None)


def comments(path):
    """(line, text) of every comment; lines below each other are one."""
    mark, found, start, current = mark_of(path), [], 0, []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        own = re.match(rf"\s*(?:{mark}|/?\*+(?!/))[/!<]*\s?(.*)", line)
        behind = None if own else re.search(rf"[;,{{}}):]\s*{mark}[/!<]*\s(.*)", line)
        if own and own[1].strip():
            start = start if current else number
            current.append(own[1].strip())
            continue
        if current:
            found.append((start, " ".join(current)))
            current = []
        if behind:
            found.append((number, behind[1].strip()))
    return found + ([(start, " ".join(current))] if current else [])


def sentences(text):
    return re.split(r"(?<=[.:;!?])\s+(?=[A-Z])", text)


def riddles(path):
    for number, text in comments(path):
        for sentence in sentences(text):
            if pages.RIDDLE.match(sentence.removesuffix("*/").rstrip()):
                yield number, sentence


NAMED = re.compile(r"(?<![\w./<{$-])((?!absl/)(?:[\w-]+/)+[\w-]+\.(?:h|cc|cu|cuh|py|c|md|sh|cmake|rs|go))\b")


def endings():
    """Every file of the tree, by its path and the ends of its path."""
    found = set()
    for folder in (*FOLDERS, "docs"):
        for path in (pages.ROOT / folder).rglob("*"):
            parts = path.relative_to(pages.ROOT).parts
            found |= {"/".join(parts[i:]) for i in range(len(parts))}
    return found


def main():
    folders = sys.argv[1:] or FOLDERS
    found, known = 0, endings()
    for folder in folders:
        for path in sorted((pages.ROOT / folder).rglob("*")):
            if not path.is_file() or not mark_of(path):
                continue
            for number, sentence in riddles(path):
                print(f"{path.relative_to(pages.ROOT)}:{number}: {sentence[:150]}")
                found += 1
            for number, text in comments(path):
                for name in set(NAMED.findall(text)) - known:
                    print(f"{path.relative_to(pages.ROOT)}:{number}: {name}: no such file")
                    found += 1
    print(f"{found} findings in comments")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
