#!/usr/bin/env python3
"""The table of transformers' models in docs/reference/checkpoints.md, of what zoo_test.py has
recorded in zoo.json. Fails where the two differ.
  zoo_table.py [--write]"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = pathlib.Path(__file__).with_name("zoo.json")
PAGE = ROOT / "docs/reference/checkpoints.md"
# Pages that say how many models there are.
COUNTS = {"CHANGELOG.md": r"(\d+) of the (\d+) MoE models of\s+transformers"}
KINDS = ("prompt", "decode", "padding")


def _bound(values):
    """A power of ten that none of them is above."""
    if not values:
        return "-"
    return next(f"1e-{n}" for n in range(5, -3, -1) if max(values) <= 10.0 ** -n)


def _cells(one):
    if "refused" in one:
        return (f"refused: {one['refused']}", *["-"] * (1 + len(KINDS)))
    return (", ".join(one["routes"]), "yes" if one["read by the library"] else "no",
            *(_bound([v for what, pair in one["differences"].items() if what.startswith(kind)
                      for v in pair]) for kind in KINDS))


def table(models):
    """models: {name: what zoo_test.py has recorded}."""
    groups = {}
    for name, one in models.items():
        groups.setdefault(_cells(one), []).append(name)
    rows = [("who routes", "reader", *KINDS, "models"), ("---",) * 6,
            *((*cells, ", ".join(names)) for cells, names in sorted(groups.items()))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows).replace(" --- ", "---")


def served(models):
    return sum("refused" not in one for one in models.values())


def main(arguments):
    record = json.loads(RECORD.read_text())
    models, text = record["models"], PAGE.read_text()
    begin, end = (text.index(f"<!-- zoo {edge} -->") for edge in ("begins", "ends"))
    section = f"<!-- zoo begins -->\n{table(models)}\n"
    if "--write" in arguments:
        PAGE.write_text(text[:begin] + section + text[end:])
        return 0
    wrong = []
    if text[begin:end] != section:
        wrong.append(f"{PAGE.name}: its table is not that of {RECORD.name}; --write writes it")
    if f"transformers {record['transformers'].rsplit('.', 1)[0]}," not in text:
        wrong.append(f"{PAGE.name}: {RECORD.name} is of transformers {record['transformers']}")
    for page, pattern in COUNTS.items():
        said = re.search(pattern, (ROOT / page).read_text())
        if said and (int(said[1]), int(said[2])) != (served(models), len(models)):
            wrong.append(f"{page}: '{said[0]}', but {RECORD.name} has {served(models)} of "
                         f"{len(models)}")
    print("\n".join(wrong) or f"{served(models)} of {len(models)} models")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
