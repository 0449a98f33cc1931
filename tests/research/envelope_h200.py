#!/usr/bin/env python3
"""Strategies on a device: docs/results/envelope.md.

    envelope_h200.py --bench build/cuda/lab/moert-bench [--part exact|recorded|bounded ...] [--traces DIR]
                     [--out docs/results/data/envelope-h200.json] [--seconds N]
    envelope_h200.py --take FILE... [--out FILE]

exact: `fate` against the other exact strategies over published shapes, workload `mixed`. recorded: the same over
the routing of small-moe, which envelope.py recorded into DIR, with experts as wide as the shape's. bounded: the same
routing, strategies that answer low or substitute within an accepted loss. Weights are synthetic, attention is
emulated. The strategies of a cell take turns on the same steps, replayed from a CUDA graph where they can be. A cell
that the file has is not repeated; no run begins after --seconds. The device and the machine must be otherwise idle.
--take keeps what moert-bench wrote elsewhere, in place of what the file has.
"""
import argparse
import itertools
import json
import pathlib
import re
import statistics
import subprocess
import time

import experiment
import quality_lib as lib
import report

STORED = report.DATA / "envelope-h200.json"
RIVALS = ("fate:percentile=75,eviction=arc", "on-demand", "on-demand+importance.residency", "activation-path")
SHAPES = ("qwen3-30b:12", "deepseek-v2-lite:12")
WIDTHS = ("qwen3-30b",)
BATCHES, BUDGETS, RECORDED_BUDGETS, BOUNDED_BUDGETS = (1, 3, 8), (10, 25, 50, 75, 90), (25, 50, 75, 90), (25, 50)
LOSS = 0.05
BOUNDED_SCHEMES = "bf16,w2a16_g64_asym"
BOUNDED = (f"graded:loss={LOSS}", f"importance:alpha=0.3,max_mass={LOSS}", f"importance:max_mass={LOSS}", "fate",
           "hybrimoe-like:fill=1", "never-stall")
SHORT = {RIVALS[0]: "first edition", "on-demand": "LRU", "on-demand+importance.residency": "score", "activation-path": "path"}
MEAN, MEDIAN = 0, 1  # of the steps, ms


def runs(part, traces):
    """(name of a cell but its budget, flags, budgets, strategies)"""
    if part == "exact":
        for batch, shape in itertools.product(BATCHES, SHAPES):
            flags = ["--synthetic", shape, "--workload", "mixed", "--batch", str(batch), "--schemes", "w4a16_g128",
                     "--warm", "96", "--steps", "24"]
            yield f"{shape} {batch}", flags, BUDGETS, ("fate", *RIVALS)
        return
    schemes, budgets, strategies = (("w4a16_g128", RECORDED_BUDGETS, ("fate", *RIVALS)) if part == "recorded" else
                                    (BOUNDED_SCHEMES, BOUNDED_BUDGETS, BOUNDED))
    for domain, batch, shape in itertools.product(lib.DOMAINS, BATCHES, WIDTHS):
        trace = traces / f"held-small-moe-{domain}-{batch}.trace"
        flags = ["--synthetic", shape, "--workload", f"trace:{trace}", "--schemes", schemes, "--warm", "128",
                 "--steps", "32"]
        yield f"{shape} {domain} {batch}", flags, budgets, strategies


def measure(options):
    data = json.loads(options.out.read_text()) if options.out.exists() else {}
    begin = time.monotonic()
    for part in options.part:
        cells = data.setdefault(key_of(part), {})
        for name, flags, budgets, strategies in runs(part, options.traces):
            missing = [b for b in budgets if f"{name} {b}" not in cells]
            if not missing or time.monotonic() - begin > options.seconds:
                continue
            command = [options.bench, "decode", "--backend", "cuda", *flags, "--strategy", report.today(";".join(strategies)),
                       "--budget", ",".join(f"{b}%" for b in missing), "--graph", "--repeats", "4", "--quiet",
                       "--json", "-"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
            keep(data, part, lambda _, name=name: name, json.loads(done.stdout))
            options.out.write_text(json.dumps(data, indent=1) + "\n")


def key_of(part):
    return "cells" if part == "exact" else part


def keep(data, part, name_of, result):
    """The cells of a run, and the commit that each is of. name_of: of a group, all but the budget."""
    data["device"] = result["device"]
    for group in result["groups"]:
        name = f"{name_of(group)} {group['budget'].rstrip('%')}"
        data.setdefault(key_of(part), {})[name] = {
            v["strategy"]: [v["step_mean_ms"], v["step_p50_ms"], v["hit_ratio"]] for v in group["variants"]}
        data.setdefault("commits", {}).setdefault(key_of(part), {})[name] = result["commit"]


def take(options):
    """What moert-bench wrote elsewhere with the flags of `runs`, of any batches and budgets."""
    data = json.loads(options.out.read_text()) if options.out.exists() else {}
    for path in options.take:
        result = json.loads(path.read_text())
        shape, trace = result["shape"], re.match(r"trace:.*-(\w+)-\d+\.trace", result["workload"])
        if trace:
            part = "bounded" if result["schemes"] == BOUNDED_SCHEMES else "recorded"
            keep(data, part, lambda group: f"{WIDTHS[0]} {trace[1]} {group['batch']}", result)
        else:
            keep(data, "exact", lambda group: f"{shape['name']}:{shape['layers']} {group['batch']}", result)
    options.out.write_text(json.dumps(data, indent=1) + "\n")


def ratios(cells, rivals, which, ours="fate"):
    """{name but the budget: {budget: time of the best of the rivals over ours}}"""
    found = {}
    for name, known in cells.items():
        name, budget = name.rsplit(" ", 1)
        times = [known[r][which] for r in rivals if r in known]
        if times:
            found.setdefault(name, {})[int(budget)] = min(times) / known[ours][which]
    return found


def newest(data):
    """The synthetic cells of the commit that most are of."""
    of = data["commits"]["cells"]
    commits = list(of.values())
    last = max(set(commits), key=commits.count)
    return {name: known for name, known in data["cells"].items() if of[name] == last}


def origin(part):
    """({commit}, {device}) of a part's cells that are shown."""
    data = json.loads(STORED.read_text(encoding="utf-8"))
    shown = newest(data) if part == "cells" else data[part]
    return {data["commits"][part][name] for name in shown}, {data["device"]["device"]}


def table(data):
    """A row a shape and batch: the time of the best of the four over that of fate, and who it is."""
    rows = []
    for head, of in ratios(newest(data), RIVALS, MEAN).items():
        shape, batch = head.split(" ")
        names = {b: min(RIVALS, key=lambda r, b=b: data["cells"][f"{head} {b}"][r][MEAN]) for b in of}
        rows.append([shape.split(":")[0], batch, *(f"{of[b]:.2f}, {SHORT[names[b]]}" if b in of else "-" for b in BUDGETS)])
    return experiment.table(["shape, 12 layers", "batch", *(f"{b} %" for b in BUDGETS)], rows)


def over_domains(data, part, rivals, ours, budgets):
    """A row a batch and rival; a cell: mean over the domains, and the least."""
    rows = []
    for who, several in rivals:
        of = ratios(data.get(part, {}), several, MEAN, ours)
        for batch in BATCHES:
            names = [n for n in of if n.endswith(f" {batch}")]
            found = {b: [of[n][b] for n in names if b in of[n]] for b in budgets}
            rows.append([str(batch), who, *(f"{statistics.mean(found[b]):.2f} ({min(found[b]):.2f})" if found[b]
                                            else "-" for b in budgets)])
    rows.sort(key=lambda row: int(row[0]))
    return experiment.table(["batch", f"time over that of `{ours}`: mean (least)", *(f"{b} %" for b in budgets)], rows)


def recorded_table(data):
    rivals = [("the best of the four", RIVALS)]
    return over_domains(data, "recorded", rivals, "fate", RECORDED_BUDGETS)


def bounded_table(data):
    """A row a batch; a cell: of one rival, by budget."""
    cells = {}
    for rival in BOUNDED[1:4]:
        of = ratios(data.get("bounded", {}), [rival], MEAN, BOUNDED[0])
        for batch in BATCHES:
            names = [n for n in of if n.endswith(f" {batch}")]
            found = [[of[n][b] for n in names if b in of[n]] for b in BOUNDED_BUDGETS]
            cells[batch, rival] = ", ".join(f"{statistics.mean(v):.2f} ({min(v):.2f})" if v else "-" for v in found)
    budgets = ", ".join(str(b) for b in BOUNDED_BUDGETS)
    return experiment.table(["batch", *(f"`{r}`: {budgets} %" for r in BOUNDED[1:4])],
                            [[str(batch), *(cells[batch, r] for r in BOUNDED[1:4])] for batch in BATCHES])


def stored(render):
    return lambda: render(json.loads(STORED.read_text(encoding="utf-8")))


stored_table, stored_recorded, stored_bounded = map(stored, (table, recorded_table, bounded_table))


def summary(cells, rivals, ours):
    best = [v for of in ratios(cells, rivals, MEAN, ours).values() for v in of.values()]
    return f"mean {statistics.mean(best):.3f}, least {min(best):.3f}, {len(best)} cells" if best else "no cells"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench")
    parser.add_argument("--take", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--part", choices=["exact", "recorded", "bounded"], nargs="+", default=["exact"])
    parser.add_argument("--traces", default=report.ROOT / "build" / "envelope", type=pathlib.Path)
    parser.add_argument("--out", default=STORED, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    take(options) if options.take else measure(options)
    data = json.loads(options.out.read_text())
    for part, render in (("exact", table), ("recorded", recorded_table), ("bounded", bounded_table)):
        if part in options.part:
            print(render(data))
    print("\nbest of the others over fate:", summary(data.get("cells", {}), RIVALS, "fate"))
    print("recorded routing:", summary(data.get("recorded", {}), RIVALS, "fate"))
    for rival in BOUNDED[1:]:
        print(f"{rival} over {BOUNDED[0]}:", summary(data.get("bounded", {}), [rival], BOUNDED[0]))


if __name__ == "__main__":
    main()
