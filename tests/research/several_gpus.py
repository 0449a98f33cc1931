"""Tables of moert-bench ranks: docs/results/data/several-gpus.json holds its reports, as `runs`.

    tests/research/several_gpus.py REPORT.json ...     writes that file
"""
import json
import pathlib
import sys

import experiment
import origins
import report

NAMES = {("qwen3-30b", "bf16"): "30B, bf16", ("qwen3-30b", "w4a16_g128"): "30B, w4",
         ("qwen3-next-80b", "bf16"): "Next, bf16", ("qwen3-next-80b", "w4a16_g128"): "Next, w4"}
SHOWN = (1, 8, 256, 2048, 8192)  # rows of a step


def load():
    return json.loads((report.DATA / "several-gpus.json").read_text(encoding="utf-8"))["runs"]


def shown(run):
    """Whether the table shows it; others are of sentences beside it."""
    return "copies" not in run["command"] and not (run["placement"] == "popular" and "25%" in run["command"])


def origin():
    return origins.commits_and_machines([run for run in load() if shown(run)])


def two_gpus():
    """A row a size and budget, a column a shape and scheme: of one GPU and of two."""
    found = {}
    for run in filter(shown, load()):
        cells = {}
        for row in run["rows"]:
            cells.setdefault((row["phase"], row["rows"], row["budget"]), []).append(row)
        for (phase, count, budget), (one, two) in cells.items():
            if count not in SHOWN or (phase == "prefill" and not two["replayed"]):
                continue
            times = ", ".join(f"{r['step_ms']['median']:.2f}" for r in (one, two))
            text = f"{times}; {two['speedup']:.2f}, {max(0, 100 * two['exchange_share']):.0f}"
            found.setdefault((phase, count, budget), {}).setdefault(NAMES[run["shape"].split(":")[0], run["scheme"]], text)
    order = sorted(found, key=lambda k: (k[0], k[1], -int(k[2].rstrip("%"))))
    return experiment.table(["rows of a step", "budget a GPU", *NAMES.values()],
                            [[f"{'decode' if phase == 'decode' else 'prompt'}, {count}", budget,
                              *(found[phase, count, budget].get(name, "-") for name in NAMES.values())]
                             for phase, count, budget in order])


def main():
    runs = [json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]]
    for run in runs:
        run.setdefault("placement", "ranges")
        run["command"] = report.command_of(run["command"])
    (report.DATA / "several-gpus.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
