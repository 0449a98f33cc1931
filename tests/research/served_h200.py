#!/usr/bin/env python3
"""Misses and prefetches served by a device, beside the same strategies run eagerly: docs/results/papers.md.

    served_h200.py --bench build/cuda/lab/moert-bench [--out docs/results/data/h200-served.json] [--seconds N]
    served_h200.py --take FILE...    what moert-bench wrote elsewhere with these flags

Published shapes with synthetic weights in w4a16_g128, workload `mixed`. A command measures all strategies and
budgets of a shape, in turns on the same steps: replayed from a CUDA graph, or eager. One that the file has is
not repeated; none begins after --seconds. The device and the machine must be otherwise idle.
"""
import argparse
import json
import pathlib
import subprocess
import time

import experiment
import report

STORED = report.DATA / "h200-served.json"
STRATEGIES = ("fate", "on-demand", "on-demand+importance.residency", "activation-path")
RIVALS = ("load-on-demand", *STRATEGIES, "activation-path+fate.residency")
BUDGETS = "25%,50%,90%"
# Attention with which a layer takes about as long as two of its records on the link, us.
TWO_TRANSFERS = {"qwen3-30b:12": 50, "deepseek-v2-lite:12": 115}


def runs():
    """(name, shape, flags, strategies), what tells most first."""
    for shape, batch in (("qwen3-30b:12", 1), ("deepseek-v2-lite:12", 1), ("qwen3-30b:12", 8),
                         ("deepseek-v2-lite:12", 8), ("deepseek-v2-lite:26", 1), ("qwen3-30b:48", 1)):
        for mode in ("graph", "eager"):
            flags = ["--batch", str(batch)] + (["--graph"] if mode == "graph" else [])
            yield f"{shape} {batch} {mode}", shape, flags, STRATEGIES
        if batch == 1 and shape in TWO_TRANSFERS:
            window = ["--attention-us", str(TWO_TRANSFERS[shape])]
            yield f"{shape} {batch} window", shape, ["--graph", *window], RIVALS
            yield f"{shape} {batch} eager-window", shape, window, ("fate", "load-on-demand", "on-demand")


def run(bench, shape, flags, strategies, repeats=4):
    """What moert-bench measured of one shape."""
    command = [bench, "decode", "--backend", "cuda", "--synthetic", shape, "--schemes", "w4a16_g128", "--strategy",
               ";".join(strategies), "--budget", BUDGETS, "--workload", "mixed", "--warm", "96", "--steps", "24",
               "--repeats", str(repeats), *flags, "--quiet", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def measure(options):
    data = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    begin = time.monotonic()
    for name, shape, flags, strategies in runs():
        if name in data["runs"] or time.monotonic() - begin > options.seconds:
            continue
        keep(data, name, run(options.bench, shape, flags, strategies))
        options.out.write_text(json.dumps(data, indent=1) + "\n")


def keep(data, name, result):
    data.update(device=result["device"])
    data["runs"][name] = {"commit": result["commit"], "transfer_ms": result["groups"][0]["transfer_ms"], "cells": {
        f"{group['budget']} {v['strategy']}": [v["step_mean_ms"], v["step_ms"]["min"], v["step_ms"]["max"],
                                               v["hit_ratio"]]
        for group in result["groups"] for v in group["variants"] if v["strategy"] in RIVALS}}


def take(options):
    data = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    for path in options.take:
        result = json.loads(path.read_text())
        mode = "graph" if "--graph" in result["command"] else "eager"
        batch, = {group["batch"] for group in result["groups"]}
        keep(data, f"{result['shape']['name']}:{result['shape']['layers']} {batch} {mode}", result)
    options.out.write_text(json.dumps(data, indent=1) + "\n")


def load():
    return json.loads(STORED.read_text(encoding="utf-8"))["runs"]


def cells_of(known, name):
    return known.get(name, {"cells": {}})["cells"]


def served_table():
    """A row a shape, batch and strategy; a cell: ms a step replayed, how many times as fast as eager, hits."""
    known, rows = load(), []
    for name in known:
        shape, batch, mode = name.split()
        if mode != "graph":
            continue
        eager = cells_of(known, f"{shape} {batch} eager")
        for strategy in STRATEGIES:
            row = []
            for budget in BUDGETS.split(","):
                mean, low, high, hits = known[name]["cells"][f"{budget} {strategy}"]
                times = f"{eager[f'{budget} {strategy}'][0] / mean:.2f}" if eager else "-"
                row.append(f"{mean:.2f} ({low:.2f} .. {high:.2f}); {times}; {100 * hits:.0f} %")
            rows.append([shape.replace(":", ", ") + " layers", batch, f"`{strategy}`", *row])
    return experiment.table(["shape", "batch", "ms a step; over eager; hits", *BUDGETS.replace("%", " %").split(",")],
                            rows)


def window_table():
    """Times over that of fate where two transfers take as long as a layer; fate's own in ms."""
    known, rows = load(), []
    for name, run in known.items():
        shape, _, mode = name.split()
        if mode != "window":
            continue
        for strategy in RIVALS:
            row = []
            for budget in BUDGETS.split(","):
                fate, mine = run["cells"][f"{budget} fate"], run["cells"][f"{budget} {strategy}"]
                row.append(f"{fate[0]:.2f} ms; {100 * fate[3]:.0f} % hits" if strategy == "fate"
                           else f"{mine[0] / fate[0]:.2f}")
            rows.append([shape.replace(":", ", ") + " layers", f"`{strategy}`", *row])
    return experiment.table(["shape", "time over that of `fate`", *BUDGETS.replace("%", " %").split(",")], rows)


def rule_table():
    """Of `importance` and exact strategies, in turns on the same steps: ms a step replayed, and eagerly."""
    cells = json.loads(STORED.read_text(encoding="utf-8"))["rule"]["cells"]
    rows = []
    for batch in ("1", "8"):
        for strategy in ("fate", "on-demand", "importance:balancer=0", "importance:alpha=0.3,balancer=0"):
            row = [batch, f"`{strategy}`"]
            for budget in BUDGETS.split(","):
                graph = cells[f"{batch} {budget} graph {strategy}"]
                eager = cells.get(f"{batch} {budget} eager {strategy}")
                row.append(f"{graph[0]:.2f} ({graph[1]:.2f} .. {graph[2]:.2f}); "
                           f"{f'{eager[0]:.2f}' if eager else '-'}; {100 * graph[3]:.0f} %")
            rows.append(row)
    return experiment.table(["batch", "ms a step replayed; eager; hits", *BUDGETS.replace("%", " %").split(",")], rows)


def graded_table():
    """Of `graded` and others, in turns on the same steps: ms a step, hits, slots answered low or substituted."""
    cells = json.loads(STORED.read_text(encoding="utf-8"))["graded"]["cells"]
    versions = "hi=w4a16_g128"
    kinds = [("graph", f"graded:{versions}"), ("graph", f"graded:{versions},balancer=0"),
             ("graph", f"graded:{versions},balancer=0,alpha=0"), ("eager", f"graded:{versions}"),
             ("eager", f"graded:{versions},balancer=0"), ("graph", "importance"), ("graph", "importance:balancer=0"),
             ("graph", "importance:alpha=0.3,max_mass=0.05,balancer=0"), ("eager", "importance"), ("graph", "fate"),
             ("graph", "fate:eviction=arc"), ("eager", "fate:eviction=arc"), ("graph", "on-demand")]
    rows = []
    for batch in ("1", "8"):
        for mode, strategy in kinds:
            name = strategy.replace(f"{versions},", "").replace(f":{versions}", "")
            row = [batch, f"`{name}`, {'replayed' if mode == 'graph' else 'eager'}"]
            for budget in ("25%", "50%"):
                cell = cells.get(f"{batch} {budget} {mode} {strategy}")
                row.append("-" if cell is None else f"{cell[0]:.2f} ({cell[1]:.2f} .. {cell[2]:.2f}); {100 * cell[3]:.0f} %; "
                           f"{100 * (cell[4] + cell[5]):.1f} %")
            rows.append(row)
    return experiment.table(["batch", "ms a step; hits; slots low or substituted", "25 %", "50 %"],
                            [row for row in rows if row[2:] != ["-", "-"]])


def slower():
    """(cell, times as fast as eager) of cells where the replayed step is slower."""
    known = load()
    for name in known:
        shape, batch, mode = name.split()
        eager = cells_of(known, f"{shape} {batch} eager")
        for cell, (mean, *_) in cells_of(known, name).items() if mode == "graph" and eager else ():
            if eager[cell][0] < mean:
                yield f"{shape} {batch} {cell}", eager[cell][0] / mean


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench")
    parser.add_argument("--take", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--out", default=STORED, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    if options.take:
        take(options)
    if options.bench:
        measure(options)
        for name, run in json.loads(options.out.read_text())["runs"].items():
            print(name, {cell: [round(v, 3) for v in values] for cell, values in run["cells"].items()})
    else:
        print(served_table(), window_table(), *slower(), sep="\n\n")


if __name__ == "__main__":
    main()
