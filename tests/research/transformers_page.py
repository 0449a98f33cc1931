"""The tables of docs/results/transformers.md, made from what bench_transformers.py --json wrote.

    tests/research/transformers_page.py FILE...    keeps the rows of these files, newest last
"""
import json
import pathlib
import re
import sys

import experiment
import report

NAME = "transformers"
HEAD = ["experts", "% in GPU memory", "tokens/s", "hits, %", "prompt of 2,048, ms", "GPU, GiB"]


def stored():
    return json.loads((report.DATA / f"{NAME}.json").read_text(encoding="utf-8"))


def spread(values, form):
    if not values:
        return ""
    middle, low, high = (format(value, form) for value in values)
    return middle if low == high else f"{middle} ({low} to {high})"


def times(values):
    return spread(values, ",.0f")


def rate(values):
    return spread(values, ".0f" if values and values[0] >= 10 else ".2f")


def share(row):
    if "budget" in row:
        return f"{100 * row['budget']:.0f}"
    return "25" if "offloaded_gib" in row else "100"


def cells(row):
    name = row["mode"].split(", experts of")[0]
    return [name, share(row), rate(row.get("tokens_per_s")),
            f"{100 * row['hits']:.0f}" if "hits" in row else "", times(row.get("prompt_2048_ms")),
            f"{row['device_gib']:.1f}"]


def table():
    order = lambda row: (row["mode"].startswith("transformers"), row["mode"], -row.get("budget", 1))
    shown = [row for row in stored()["rows"] if row.get("budget", 1) != 0.1 and not re.search("grouped_mm|replayed|offload$|transformers, eager", row["mode"])]
    return experiment.table(HEAD, [cells(row) for row in sorted(shown, key=order)])


def main():
    kept = stored() if (report.DATA / f"{NAME}.json").exists() else {"about": "", "rows": []}
    known = {(row["mode"], row.get("budget")): row for row in kept["rows"]}
    for path in sys.argv[1:]:
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "failed" not in row:
                known[row["mode"], row.get("budget")] = row
    rows = ",\n".join(f"  {json.dumps(row)}" for row in known.values())
    text = f'{{\n "about": {json.dumps(kept["about"])},\n "rows": [\n{rows}\n ]\n}}\n'
    (report.DATA / f"{NAME}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
