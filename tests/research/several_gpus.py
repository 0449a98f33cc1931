"""Tables of moert-bench ranks: several-gpus.json and resident-ranks.json of docs/results/data hold its reports, as `runs`.

    tests/research/several_gpus.py FILE REPORT.json ...     writes one of them
"""
import json
import pathlib
import sys

import experiment
import report

NAMES = {("qwen3-30b", "bf16"): "30B, bf16", ("qwen3-30b", "w4a16_g128"): "30B, w4",
         ("qwen3-next-80b", "bf16"): "Next, bf16", ("qwen3-next-80b", "w4a16_g128"): "Next, w4"}
SHOWN = (1, 8, 256, 2048, 8192)  # rows of a step


def load(name):
    return json.loads((report.DATA / name).read_text(encoding="utf-8"))["runs"]


def resident():
    """A row a size, a column a shape and scheme: ranks that hold every expert, as they choose to share a step."""
    found, names = {}, {}
    for run in load("resident-ranks.json"):
        name = NAMES[run["shape"].split(":")[0], run["scheme"]]
        name += ", no peer access" if "--no-peer-access" in run["command"] else ""
        pairs = {}
        for row in run["rows"]:
            pairs.setdefault((row["phase"], row["rows"]), []).append(row)
        for cell, (one, two) in pairs.items():
            names[name] = True
            found.setdefault(cell, {})[name] = (f"{one['step_ms']['median']:.2f}, {two['step_ms']['median']:.2f}; "
                                                f"{two['speedup']:.2f}, {two['split']}")
    return by_size(found, names)


def two_gpus():
    """A row a size, a column a shape and scheme, with a quarter of the experts a GPU: of one GPU and of two."""
    found = {}
    for run in load("several-gpus.json"):
        cells = {}
        for row in run["rows"]:
            cells.setdefault((row["phase"], row["rows"], row["budget"]), []).append(row)
        for (phase, count, budget), (one, two) in cells.items():
            if count not in SHOWN or budget != "25%" or not two["replayed"]:
                continue
            times = ", ".join(f"{r['step_ms']['median']:.2f}" for r in (one, two))
            text = f"{times}; {two['speedup']:.2f}, {max(0, 100 * two['exchange_share']):.0f}"
            found.setdefault((phase, count), {})[NAMES[run["shape"].split(":")[0], run["scheme"]]] = text
    return by_size(found, NAMES.values())


def by_size(found, names):
    """A row a phase and size, a column a name."""
    return experiment.table(["rows of a step", *names], [[f"{'decode' if phase == 'decode' else 'prompt'}, {count}",
                                                         *(found[phase, count].get(name, "-") for name in names)]
                                                        for phase, count in sorted(found)])


def main():
    name, *reports = sys.argv[1:]
    runs = [json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in reports]
    for run in runs:
        run.setdefault("placement", "ranges")
        run["command"] = report.command_of(run["command"])
    (report.DATA / name).write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
