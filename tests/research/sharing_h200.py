#!/usr/bin/env python3
"""Misses over the link alone, and shared with the CPU: docs/results/sharing.md.

    sharing_h200.py --bench build/cuda/bin/moert-bench --out FILE [--copier build/cuda/lab/moert-copier] [--words ...]
    sharing_h200.py --take FILE...    puts such files into docs/results/data, h200-sharing.json and h200-pinned.json

Qwen3-30B-A3B's shape, 12 of 48 layers, synthetic weights in w4a16_g128, a step replayed from one graph. A command
measures `fate` and `fate:cpu=1` in turns on the same steps, at all budgets. With --copier another program moves
pinned memory to the device at 25 GB/s meanwhile: the link has then about what PCIe 4 has. Runs whose name holds
one of --words alone. Runs named `pinned` hold a quarter of the experts on the device and a share of all in pinned RAM;
the others are in RAM that is not pinned, so that only the CPU can multiply them.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

import experiment
import report
import side_by_side

STORED, STORED_PINNED = report.DATA / "h200-sharing.json", report.DATA / "h200-pinned.json"
ALONE, SHARED = "fate", "fate:cpu=1"
BUDGETS = "10%,25%,50%,90%"
PINNED, PINNED_SHARES, PINNED_BUDGET = (SHARED, "on-demand:cpu=1"), ("100%", "50%", "25%", "0"), "25%"


def runs():
    """(workload, batch, threads; 0: all)"""
    for batch in (1, 8, 3, 32):
        for workload in ("mixed", "uniform"):
            yield workload, batch, 0
    for threads in (4, 8):
        yield "uniform", 1, threads


def name_of(workload, batch, threads, link):
    return f"{link} {workload} {batch}" + (f" {threads} threads" if threads else "")


def run(bench, workload, batch, threads=0, repeats=5, strategies=(ALONE, SHARED), budgets=BUDGETS, more=()):
    """A run as it is kept."""
    command = [bench, "decode", "--backend", "cuda", "--synthetic", "qwen3-30b:12", "--schemes", "w4a16_g128",
               "--strategy", ";".join(strategies), "--budget", budgets, "--workload", workload, "--batch", str(batch),
               "--graph", "--warm", "96" if batch < 8 else "48", "--steps", "24", "--repeats", str(repeats),
               "--threads", str(threads), *more, "--quiet", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    result = json.loads(done.stdout)
    return {"commit": result["commit"], "device": result["device"], "command": report.command_of(result["command"]),
            "cells": {f"{g['budget']} {v['strategy']}": {"ms": v["repetition_ms"], "hits": v["hit_ratio"]}
                      for g in result["groups"] for v in g["variants"]}}


def commands(link):
    """(name, its run with a bench)"""
    for workload, batch, threads in runs():
        yield name_of(workload, batch, threads, link), lambda bench: run(bench, workload, batch, threads)
    for batch in (1, 8):
        for workload in ("mixed", "uniform"):
            for share in PINNED_SHARES:
                yield (f"{link} {workload} {batch} {share} pinned", lambda bench: run(
                    bench, workload, batch, strategies=PINNED, budgets=PINNED_BUDGET, more=("--host-budget", share)))


def measure(options, link):
    data = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    for name, measured in commands(link):
        if not any(word in name for word in options.words):
            continue
        data["runs"][name] = measured(options.bench)
        options.out.write_text(json.dumps(data, indent=1) + "\n")
        print(name, {k: round(time(c), 3) for k, c in data["runs"][name]["cells"].items()}, flush=True)


def time(cell):
    return statistics.median(cell["ms"])


def take(paths):
    runs = {}
    for path in paths:
        runs.update(json.loads(path.read_text())["runs"])
    for stored in (STORED, STORED_PINNED):
        taken = {name: run for name, run in runs.items() if name.endswith("pinned") == (stored == STORED_PINNED)}
        if taken:
            stored.write_text(json.dumps({"runs": taken}, indent=1) + "\n", encoding="utf-8")


def load(stored=STORED):
    return json.loads(stored.read_text(encoding="utf-8"))["runs"]


def pinned_table():
    """A row a link, batch and workload; a cell: ms a step by `fate` and by `on-demand`."""
    known, rows = load(STORED_PINNED), []
    for link, workload, batch in dict.fromkeys(tuple(name.split()[:3]) for name in known):
        runs = [known.get(f"{link} {workload} {batch} {share} pinned") for share in PINNED_SHARES]
        rows.append([link, f"{batch}, {workload}", *(", ".join(
            f"{time(run['cells'][f'{PINNED_BUDGET} {s}']):.2f}" for s in PINNED) if run else "-" for run in runs)])
    return experiment.table(["link", "batch, routing", "all pinned", "50 %", "25 %", "none"], rows)


def table():
    """A row a link, batch and workload; a cell: ms a step without and with the CPU."""
    rows = []
    for name, run in load().items():
        link, workload, batch, *threads = name.split()
        row = []
        for budget in BUDGETS.split(","):
            alone, shared = (run["cells"].get(f"{budget} {s}") for s in (ALONE, SHARED))
            if alone is None or shared is None:
                row.append("-")
                continue
            row.append(f"{time(alone):.2f}, {time(shared):.2f}; {time(alone) / time(shared):.2f}")
        rows.append([link, f"{batch}, {workload}" + (f", {' '.join(threads)}" if threads else ""), *row])
    return experiment.table(["link", "batch, routing", *BUDGETS.replace("%", " %").split(",")], rows)


def lost(known, link):
    """["batch, routing, budget"] of the cells in which sharing takes more than 1 % longer."""
    found = []
    for name, run in known.items():
        of, workload, batch, *threads = name.split()
        if of != link or threads:
            continue
        slower = [b for b in BUDGETS.split(",") if time(run["cells"][f"{b} {ALONE}"]) < 0.99 * time(run["cells"][f"{b} {SHARED}"])]
        if slower:
            found.append(f"batch {batch}, {workload}, {' and '.join(slower)}".replace("%", " %"))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench")
    parser.add_argument("--copier")
    parser.add_argument("--gbps", type=float, default=25)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--words", nargs="+", default=[""])
    parser.add_argument("--take", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    if options.take:
        return take(options.take)
    with side_by_side.copier(options):
        measure(options, "shared" if options.copier else "free")


if __name__ == "__main__":
    main()
