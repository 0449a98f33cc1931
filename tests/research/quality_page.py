#!/usr/bin/env python3
"""Assembles docs/quality.md from its sections.

    tests/research/quality_page.py

Every docs/quality/NN-NAME.md is a section, in the order of their names; whatever measured it wrote
it, beside the JSON of its figures. Running this again changes nothing but what changed.
"""
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "quality"
HEAD = """# Quality

What quantizing experts, and choosing between precisions at run time, costs in perplexity. Put together by
`tests/research/quality_page.py` from the sections in `docs/quality/`, each written by the script that it names, with its figures beside it
as JSON.
"""


def write_section(figures, lines):
    """The section beside the JSON `figures`: lines, and behind them its .notes, if there are any."""
    notes = figures.with_suffix(".notes")
    text = "\n".join(lines + ([notes.read_text().strip()] if notes.exists() else []))
    figures.with_suffix(".md").write_text(text.strip() + "\n")
    main()


def main():
    sections = [path.read_text().strip() for path in sorted(FOLDER.glob("[0-9]*.md"))]
    FOLDER.with_suffix(".md").write_text("\n\n".join([HEAD.strip()] + sections) + "\n")


if __name__ == "__main__":
    main()
