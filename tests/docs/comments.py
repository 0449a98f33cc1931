#!/usr/bin/env python3
"""Checks that no sentence of a comment begins with Of, Whose, Who or In whose: the subject comes first.

    comments.py [FOLDER...]    of lib, kernels, include, capi and examples, if none is named
"""
import pathlib
import re
import sys

import pages

FOLDERS = ("lib", "kernels", "include", "capi", "examples")
LINE_MARK = {"//": (".h", ".cc", ".c", ".cu", ".cuh", ".inc", ".rs", ".go"), "#": (".py", ".sh")}
RIDDLE = re.compile(r"(Of|Whose|Who|In whose)\b")


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
            if RIDDLE.match(sentence):
                yield number, sentence


def main():
    folders = sys.argv[1:] or FOLDERS
    found = 0
    for folder in folders:
        for path in sorted((pages.ROOT / folder).rglob("*")):
            if not path.is_file() or not mark_of(path):
                continue
            for number, sentence in riddles(path):
                print(f"{path.relative_to(pages.ROOT)}:{number}: {sentence[:150]}")
                found += 1
    print(f"{found} comments begin with Of, Whose, Who or In whose")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
