#!/usr/bin/env python3
"""`fate` and `graded` against the best of the others on a device: docs/results/envelope.md.

    envelope_h200.py --bench build/cuda/lab/moert-bench --out docs/results/data/envelope-h200.json [--seconds N]

Published shapes with synthetic weights, workload `mixed`. The strategies of a cell take turns on the same
steps. Attention is emulated. A cell whose file has it is not repeated; no cell begins after --seconds. The
device and the machine must be otherwise idle.
"""
import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import time

import experiment

EXACT = ("fate", "fate:percentile=75,eviction=arc", "on-demand", "on-demand+importance.residency", "activation-path")
LOSS = 0.05
BOUNDED = (f"graded:loss={LOSS}", f"importance:max_mass={LOSS}", f"importance:alpha=0.3,max_mass={LOSS}", "fate",
           "hybrimoe-like:fill=1", "never-stall")
SHAPES = ("qwen3-30b:12", "deepseek-v2-lite:12")
PARTS = {  # strategies, stored versions, batches, budgets, flags
    "exact": (EXACT, "w4a16_g128", (1, 3, 8), (10, 25, 50, 75), []),
    "bounded": (BOUNDED, "bf16,w2a16_g64_asym", (1, 3), (25, 50), []),
}


def runs():
    """Batches of several strategies, those that tell most first."""
    for part in PARTS:
        strategies, schemes, batches, budgets, flags = PARTS[part]
        for batch, shape, budget in itertools.product(batches, SHAPES, budgets):
            yield f"{part} {shape} {batch} {budget}", [
                "--synthetic", shape, "--schemes", schemes, "--strategy", ";".join(strategies),
                "--budget", f"{budget}%", "--batch", str(batch), *flags]


def measure(options):
    data = json.loads(options.out.read_text()) if options.out.exists() else {"cells": {}}
    begin = time.monotonic()
    for name, flags in runs():
        if name in data["cells"] or time.monotonic() - begin > options.seconds:
            continue
        command = [options.bench, "decode", "--backend", "cuda", "--workload", "mixed", "--warm", "96", "--steps", "24",
                   "--repeats", "4", *flags, "--quiet", "--json", "-"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{' '.join(command)}\n{done.stderr[-600:]}")
            continue
        result = json.loads(done.stdout)
        for key in ("device", "commit"):
            data[key] = result[key]
        data["cells"][name] = {v["strategy"]: [v["step_mean_ms"], v["step_p50_ms"], v["hit_ratio"]]
                               for v in result["groups"][0]["variants"] if "refused" not in v}
        options.out.write_text(json.dumps(data, indent=1) + "\n")


def ratios(cells, part, rivals, which):
    """{(shape, budget): [best rival's time over ours by batch]}; which: 0 the mean, 1 the median of steps."""
    found = {}
    for name, known in cells.items():
        of, shape, _, budget = name.split()
        ours = known.get(PARTS[part][0][0])
        others = [known[r][which] for r in rivals if r in known]
        if of == part and ours and others:
            found.setdefault((shape, int(budget)), []).append(min(others) / ours[which])
    return found


def table(data, part):
    """A row a rival and the best of them, a column a shape and budget: mean over batches (least)."""
    rivals = [r for r in PARTS[part][0][1:] if r != "never-stall"]
    known = ratios(data["cells"], part, rivals, 0)
    heads = sorted(known)
    rows = []
    for name, who in [*((f"`{r}`", [r]) for r in PARTS[part][0][1:]), ("the best of them, without `never-stall`"
                      if part == "bounded" else "the best of them", rivals)]:
        mean, median = (ratios(data["cells"], part, who, which) for which in (0, 1))
        rows.append([name, *(f"{statistics.mean(mean[h]):.2f} ({min(mean[h]):.2f}); "
                             f"{statistics.mean(median[h]):.2f} ({min(median[h]):.2f})" if h in mean else "-"
                             for h in heads)])
    return experiment.table(["time over that of the first", *(f"{s.replace(':', ', ')} layers, {b} %" for s, b in heads)], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    measure(options)
    data = json.loads(options.out.read_text())
    for part in PARTS:
        print(f"\n{part}\n{table(data, part)}" if any(c.startswith(part) for c in data["cells"]) else "")


if __name__ == "__main__":
    main()
