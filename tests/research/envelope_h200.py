#!/usr/bin/env python3
"""`fate` against the best of the other exact strategies on a device: docs/results/envelope.md.

    envelope_h200.py --bench build/cuda/lab/moert-bench [--out docs/results/data/envelope-h200.json] [--seconds N]

Published shapes with synthetic weights, workload `mixed`. The strategies of a cell take turns on the same
steps, replayed from a CUDA graph where they can be. Attention is emulated. A cell that the file has is not
repeated; no cell begins after --seconds. The device and the machine must be otherwise idle.
"""
import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import time

import experiment
import report

STORED = report.DATA / "envelope-h200.json"
RIVALS = ("fate:percentile=75,eviction=arc", "on-demand", "on-demand+importance.residency", "activation-path")
SHAPES = ("qwen3-30b:12", "deepseek-v2-lite:12")
BATCHES, BUDGETS = (1, 3, 8), (10, 25, 50, 75)
MEAN, MEDIAN = 0, 1  # of the steps, ms


def measure(options):
    data = json.loads(options.out.read_text()) if options.out.exists() else {"cells": {}}
    begin = time.monotonic()
    for batch, shape, budget in itertools.product(BATCHES, SHAPES, BUDGETS):
        name = f"{shape} {batch} {budget}"
        if name in data["cells"] or time.monotonic() - begin > options.seconds:
            continue
        command = [options.bench, "decode", "--backend", "cuda", "--synthetic", shape, "--schemes", "w4a16_g128",
                   "--strategy", ";".join(("fate", *RIVALS)), "--budget", f"{budget}%", "--batch", str(batch),
                   "--workload", "mixed", "--graph", "--warm", "96", "--steps", "24", "--repeats", "4",
                   "--quiet", "--json", "-"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        result = json.loads(done.stdout)
        data.update(device=result["device"], commit=result["commit"])
        data["cells"][name] = {v["strategy"]: [v["step_mean_ms"], v["step_p50_ms"], v["hit_ratio"]]
                               for v in result["groups"][0]["variants"]}
        options.out.write_text(json.dumps(data, indent=1) + "\n")


def ratios(cells, rivals, which):
    """{(shape, batch): {budget: time of the best of them over fate's}}"""
    found = {}
    for name, known in cells.items():
        shape, batch, budget = name.split()
        best = min(known[r][which] for r in rivals)
        found.setdefault((shape, int(batch)), {})[int(budget)] = best / known["fate"][which]
    return found


def table(data):
    """A row a shape, batch and rival; a cell: its time over that of fate, by means and by medians."""
    rows = []
    for who, rivals in [*((f"`{r}`", [r]) for r in RIVALS), ("the best of them", RIVALS)]:
        mean, median = (ratios(data["cells"], rivals, which) for which in (MEAN, MEDIAN))
        for head in mean:
            shape, layers = head[0].split(":")
            rows.append([f"{shape}, {layers} layers", str(head[1]), who,
                         *(f"{mean[head][b]:.2f} ({median[head][b]:.2f})" if b in mean[head] else "-"
                           for b in BUDGETS)])
    rows.sort(key=lambda row: row[:2])
    return experiment.table(["shape", "batch", "time over that of `fate`: mean (median)", *(f"{b} %" for b in BUDGETS)],
                            rows)


def stored_table():
    return table(json.loads(STORED.read_text(encoding="utf-8")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--out", default=STORED, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    measure(options)
    data = json.loads(options.out.read_text())
    best = [v for cells in ratios(data["cells"], RIVALS, MEAN).values() for v in cells.values()]
    print(table(data))
    print(f"\nbest of the others over fate: mean {statistics.mean(best):.3f}, least {min(best):.3f}, {len(best)} cells")


if __name__ == "__main__":
    main()
