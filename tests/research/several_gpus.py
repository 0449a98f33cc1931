"""Tables of moert-bench ranks: docs/results/data/several-gpus.json holds its reports, as `runs`.

    tests/research/several_gpus.py REPORT.json ...     writes that file
"""
import json
import pathlib
import sys

import experiment
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


def ms(row):
    s = row["step_ms"]
    return f"{s['median']:.2f} ({s['min']:.2f} to {s['max']:.2f})"


def two_gpus():
    rows = []
    for (scheme, phase, count, budget), (one, two) in cells(lambda r: r["placement"] == "ranges"):
        what = f"decode, {count}" if phase == "decode" else f"prompt, {count}"
        rows.append([scheme, what, budget, ms(one), ms(two), f"{two['speedup']:.2f}",
                     f"{max(0, 100 * two['exchange_share']):.0f} %",
                     f"{100 * one['hit_ratio']:.0f}, {100 * two['hit_ratio']:.0f} %" if budget != "100%" else ""])
    return experiment.table(["scheme", "rows of a step", "budget a GPU", "one GPU, ms", "two GPUs, ms", "times as fast",
                             "exchange", "hits, one and two"], rows)


def placed():
    rows = []
    for (scheme, phase, count, budget), (one, *several) in cells(lambda r: r["placement"] == "popular"):
        for two in several:
            parts = two.get("part_rows", -1)
            how = "" if phase == "decode" or parts < 0 else "one part" if parts == 0 else f"parts of {parts}"
            how += "" if phase == "decode" else ", graph" if two["replayed"] else ", eager"
            rows.append([scheme, f"{'prompt' if phase == 'prefill' else phase}, {count}", budget, how, ms(one), ms(two),
                         f"{two['speedup']:.2f}", f"{max(0, 100 * two['exchange_share']):.0f} %"])
    return experiment.table(["scheme", "rows of a step", "budget a GPU", "summed in", "one GPU, ms", "two GPUs, ms",
                             "times as fast", "exchange"], rows)


def copies():
    rows = []
    for run in load():
        known = {}
        for row in run["rows"]:
            if "copies_of_the_model" in row:
                known.setdefault((row["rows"], row["budget"]), {})[row["peers"]] = row
        for (count, budget), pair in known.items():
            alone, peers = pair[False], pair[True]
            rows.append([NAMES[run["scheme"]], str(count), budget, ms(alone), ms(peers),
                         f"{alone['step_ms']['median'] / peers['step_ms']['median']:.2f}",
                         str(peers["peer_copies"])])
    return experiment.table(["scheme", "rows of both", "budget a GPU", "alone, ms", "with a peer tier, ms", "times as fast",
                             "copies between GPUs"], rows)


def main():
    runs = [json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]]
    for run in runs:
        run.setdefault("placement", "ranges")
        run["command"] = report.command_of(run["command"])
    (report.DATA / "several-gpus.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
