"""The Markdown pages of the documentation and what they consist of."""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# How no sentence begins, so that its subject comes first. Questions may.
RIDDLE = re.compile(r"(Of|Whose|Who|In whose|What|Whatever)\b(?!.*\?$)")


@dataclasses.dataclass
class Line:
    number: int   # from 1
    kind: str     # prose, heading, table, code, html, blank, generated
    text: str


def pages(root=ROOT):
    """README, CONTRIBUTING and everything under docs, by path."""
    return [p for p in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
            if p.exists()]


def lines_of(path):
    """The page's lines by kind. What stands between `<!-- generated... -->` marks or in a registry is
    generated."""
    found, fence, generated = [], None, None
    for number, text in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        stripped = text.strip()
        mark = re.fullmatch(r"<!-- (/?)(registry|generated:[\w-]+) -->", stripped)
        if mark:
            generated = None if mark[1] else mark[2]
            kind = "html"
        elif fence:
            kind = "code"
            if stripped.startswith(fence):
                fence = None
        elif stripped.startswith("```"):
            kind, fence = "code", "```"
        elif not stripped:
            kind = "blank"
        elif stripped.startswith("|"):
            kind = "table"
        elif stripped.startswith("<"):
            kind = "html"
        elif stripped.startswith("#"):
            kind = "heading"
        elif text.startswith("    ") and (not found or found[-1].kind in ("blank", "code", "html")) and not is_item(found):
            kind = "code"
        else:
            kind = "prose"
        if generated and kind == "prose":
            kind = "generated"
        found.append(Line(number, kind, text))
    return found


def is_item(found):
    """Whether an indented paragraph behind `found` continues a list item."""
    for line in reversed(found):
        if line.kind == "blank":
            continue
        return line.kind == "prose" and re.match(r"\s*([-*]|\d+\.) |\s{2,}\S", line.text) is not None
    return False


def paragraphs(path):
    """(first line's number, text) of every paragraph and list item of prose, markup removed."""
    found, current, start = [], [], 0

    def flush():
        if current:
            found.append((start, plain(" ".join(current))))
            current.clear()

    for line in lines_of(path):
        if line.kind != "prose":
            flush()
            continue
        if re.match(r"\s*([-*]|\d+\.) ", line.text):
            flush()
        if not current:
            start = line.number
        current.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line.text).strip())
    flush()
    return found


def plain(text):
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "CODE", text)
    return re.sub(r"[*_]{1,2}([^*_]+)[*_]{1,2}", r"\1", text)


ABBREVIATIONS = ("e.g", "i.e", "vs", "Sec", "Fig", "etc", "No")


def sentences(text):
    parts = re.split(r"(?<=[.!?])[\"')\]*]*\s+(?=\S)", text)
    joined = []
    for part in parts:
        if joined and joined[-1].rstrip(".").split(" ")[-1] in ABBREVIATIONS:
            joined[-1] += " " + part
        elif part.strip():
            joined.append(part)
    return joined


def words(text):
    return re.findall(r"[A-Za-z0-9][\w'’./%+-]*", text)


def slug(heading):
    """The anchor GitHub gives a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "", heading.lstrip("# ").strip())
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
