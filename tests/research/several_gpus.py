"""Tables of moert-bench ranks: docs/results/data/several-gpus.json holds its reports, as `runs`.

    tests/research/several_gpus.py REPORT.json ...     writes that file
"""
import json
import pathlib
import sys

import experiment
import origins
import report

NAMES = {"bf16": "bf16", "w4a16_g128": "w4"}


def load():
    return json.loads((report.DATA / "several-gpus.json").read_text(encoding="utf-8"))["runs"]


def cells(wanted):
    """((scheme, phase, rows, budget), the row of one rank and of the others) of the runs that `wanted` takes."""
    for run in filter(wanted, load()):
        found = {}
        for row in run["rows"]:
            key = (NAMES[run["scheme"]], row["phase"], row["rows"], row["budget"])
            found.setdefault(key, []).append(row)
        yield from found.items()



SHOWN = (1, 8, 64, 8192)  # rows of a step


def origin():
    """Of the runs that the table shows."""
    shown = [r for r in load() if r["placement"] == "ranges" or any(row["phase"] == "prefill" and row.get("replayed") for row in r["rows"])]
    return origins.commits_and_machines(shown)


def two_gpus():
    """Decode by ranges of experts, then prompts in a graph, placed by use. A row a size and budget, a column a scheme."""
    found = {}
    for place in ("ranges", "popular"):
        for (scheme, phase, count, budget), (one, *several) in cells(lambda r, p=place: r["placement"] == p):
            two = several[0]
            if count not in SHOWN or (place == "popular") != (phase == "prefill" and two["replayed"]) or (place == "ranges" and phase != "decode"):
                continue
            row = found.setdefault((f"{phase if phase == 'decode' else 'prompt'}, {count}", budget), {})
            times = ", ".join(f"{r['step_ms']['median']:.2f}" for r in (one, two))
            row[scheme] = f"{times}; {two['speedup']:.2f}, {max(0, 100 * two['exchange_share']):.0f}"
    schemes = list(dict.fromkeys(s for row in found.values() for s in row))
    return experiment.table(["rows of a step", "budget a GPU", *schemes],
                            [[*head, *(row.get(s, "-") for s in schemes)] for head, row in found.items()])


def main():
    runs = [json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]]
    for run in runs:
        run.setdefault("placement", "ranges")
        run["command"] = report.command_of(run["command"])
    (report.DATA / "several-gpus.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
