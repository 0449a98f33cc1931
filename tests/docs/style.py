#!/usr/bin/env python3
"""Checks the documents' form, and counts.

    style.py              line length, sentence length, first sentences and words, table width; 1 on a finding
    style.py --count DIR  words, pages and long sentences of the tree in DIR
    style.py --wrap FILE  wraps the prose of pages
"""
import argparse
import pathlib
import re
import sys
import textwrap

import pages

LINE = 100       # characters of a line of prose
WIDE = 110       # the same outside of the pages
SENTENCE = 30    # words
TABLE = 200      # characters of a table's row
README_LINES = 150

# (page, first words of a line or sentence): why it may break a rule.
EXCEPTIONS = {
    ("docs/reference/strategies.md", "|"): "made from the registry",
    ("README.md", "|"): "made from the results",
    ("docs/reference/checkpoints.md", "| library"): "made by tests/python/zoo_test.py",
    ("docs/reference/checkpoints.md", "| model"): "made by tests/python/zoo_test.py",
}


def excepted(page, text):
    return any(page == p and text.lstrip().startswith(start) for p, start in EXCEPTIONS)


def findings_of(path, root):
    page = str(path.relative_to(root))
    lines = pages.lines_of(path)
    for line in lines:
        limit = {"prose": LINE, "table": TABLE}.get(line.kind)
        if limit and len(line.text) > limit and "](" not in line.text[limit - 40:] and not excepted(page, line.text):
            yield line.number, f"{len(line.text)} characters, at most {limit}"
        if line.kind == "prose" and re.match(r"(moert-\w+|tests/\S+\.(py|sh)|c?make|ctest|llama-\w+) ", line.text):
            yield line.number, f"a command that is not indented: {line.text[:60]}..."
    for number, text in pages.paragraphs(path):
        for sentence in pages.sentences(text):
            count = len(pages.words(sentence))
            if pages.RIDDLE.match(sentence) and not excepted(page, sentence):
                yield number, f"a sentence that begins with {sentence.split(' ')[0]}: {sentence[:70]}..."
            if count > SENTENCE and not excepted(page, sentence):
                yield number, f"a sentence of {count} words, at most {SENTENCE}: {sentence[:70]}..."
    if page.startswith("docs/"):
        first = [s for _, text in pages.paragraphs(path)[:2] for s in pages.sentences(text)][:2]
        if not any("This page" in s or "this page" in s for s in first):
            yield 1, "its first two sentences do not say what this page is for"
        if not lines[0].text.startswith("# "):
            yield 1, "it does not begin with a title"
    if page == "README.md" and len(lines) - 1 > README_LINES:
        yield 1, f"{len(lines) - 1} lines, at most {README_LINES}"


def wide_lines():
    """Prose beyond WIDE in the Markdown files that are no pages: the changelog, notes beside data and models."""
    others = [p for f in ("", "examples", "tests", "capi") for p in
              ((pages.ROOT / f).rglob("*.md") if f else pages.ROOT.glob("*.md"))]
    for path in sorted(set(others) - set(pages.pages())):
        for line in pages.lines_of(path):
            if line.kind == "prose" and len(line.text) > WIDE and "](" not in line.text:
                yield path, line.number, f"{len(line.text)} characters, at most {WIDE}"


def count(root):
    """Words as `wc -w` counts them, pages, and long sentences of prose."""
    total = long = very = number = wide = 0
    all_pages = pages.pages(root)
    for path in all_pages:
        total += len(path.read_text(encoding="utf-8").split())
        wide += sum(len(line.text) > 140 for line in pages.lines_of(path) if line.kind == "prose")
        for _, text in pages.paragraphs(path):
            for sentence in pages.sentences(text):
                number += 1
                length = len(pages.words(sentence))
                long += length > 30
                very += length > 40
    print(f"{len(all_pages)} pages, {total} words; {number} sentences of prose, {long} of more than 30 words, "
          f"{very} of more than 40; {wide} lines of prose longer than 140 characters")


def wrapped(path):
    """The page's text with its prose filled to the width."""
    out, block = [], []

    def flush():
        if not block:
            return
        prefix = re.match(r"\s*(([-*]|\d+\.) )?", block[0])[0]
        hang = " " * len(prefix)
        text = " ".join(line.strip() for line in block)[len(prefix.strip()):].strip()
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", lambda m: m[0].replace(" ", "\0"), text)
        text = re.sub(r" ([-+*]|\d+\.) ", lambda m: " " + m[1] + "\0", text)  # never at a line's beginning
        filled = textwrap.fill(text, LINE, initial_indent=prefix, subsequent_indent=hang,
                               break_long_words=False, break_on_hyphens=False)
        out.extend(filled.replace("\0", " ").split("\n"))
        block.clear()

    for line in pages.lines_of(path):
        if line.kind != "prose":
            flush()
            out.append(line.text)
            continue
        if re.match(r"\s*([-*]|\d+\.) ", line.text):
            flush()
        block.append(line.text)
    flush()
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--wrap", type=pathlib.Path, nargs="+", metavar="FILE")
    args = parser.parse_args()
    for path in args.wrap or []:
        path.write_text(wrapped(path), encoding="utf-8")
    if args.wrap:
        return
    if args.count:
        count(args.count.resolve())
        return
    found = 0
    for path in pages.pages():
        for number, text in findings_of(path, pages.ROOT):
            print(f"{path.relative_to(pages.ROOT)}:{number}: {text}")
            found += 1
    for path, number, text in wide_lines():
        print(f"{path.relative_to(pages.ROOT)}:{number}: {text}")
        found += 1
    if found:
        sys.exit(f"{found} findings")


if __name__ == "__main__":
    main()
