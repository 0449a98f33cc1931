"""Where measurements are kept, and full reports of them.

docs/results/data holds the JSON behind every figure of the documents. The pages there show a digest
(pages.py). `write` makes a report with all cells and charts, build/report/NAME.md, which is not kept.
"""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "docs" / "results" / "data"
REPORT = ROOT / "build" / "report"


def today(spec):
    """The specification of a strategy as it is spelled today; stored figures keep the name they were measured under."""
    return spec.replace("never-stall:", "graded:wait=0,").replace("never-stall", "graded:wait=0")


def image(name):
    """Where a report's chart goes, as plot.save takes it."""
    (REPORT / "images").mkdir(parents=True, exist_ok=True)
    return str(REPORT / "images" / name)


def write(name, parts):
    """One Markdown page: text, or {title of a part: its text}."""
    if isinstance(parts, dict):
        parts = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())
    REPORT.mkdir(parents=True, exist_ok=True)
    path = REPORT / f"{name}.md"
    path.write_text(parts.strip() + "\n", encoding="utf-8")
    print(path)


def cells(line):
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def tables_of(text):
    """The Markdown tables of a text, [(columns, rows)]."""
    found, lines = [], text.split("\n")
    for i, line in enumerate(lines[1:], 1):
        if re.fullmatch(r"\|[-:| ]+\|", line) and lines[i - 1].startswith("|"):
            rows = []
            for row in lines[i + 1:]:
                if not row.startswith("|"):
                    break
                rows.append(cells(row))
            found.append((cells(lines[i - 1]), rows))
    return found


def command_of(words):
    """A run's command line as a page prints it, without the report and folders of files."""
    return re.sub(r"(?<=[\s,])/[^\s,]*/", "", words.split(" --json")[0])


def load_tables(name):
    path = DATA / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"about": "", "tables": {}}


def store_tables(name, texts):
    """Keeps the first table of each text under its name, beside what is stored; a row a line."""
    stored = load_tables(name)
    for key, text in texts.items():
        for columns, rows in tables_of(text)[:1]:
            stored["tables"][key] = {"columns": columns, "rows": rows}
    dump = lambda value: json.dumps(value, ensure_ascii=False)
    parts = [f'  {dump(key)}: {{\n   "columns": {dump(t["columns"])},\n   "rows": [\n    ' +
             ",\n    ".join(dump(row) for row in t["rows"]) + "\n   ]\n  }"
             for key, t in stored["tables"].items()]
    (DATA / f"{name}.json").write_text(
        f'{{\n "about": {dump(stored["about"])},\n "tables": {{\n' + ",\n".join(parts) + "\n }\n}\n",
        encoding="utf-8")
