#!/usr/bin/env python3
"""Misses over the link alone, and shared with the CPU: docs/results/sharing.md.

    sharing_h200.py --bench build/cuda/bin/moert-bench --out FILE [--copier build/cuda/lab/moert-copier] [--words ...]
    sharing_h200.py --take FILE...    puts such files into docs/results/data/h200-sharing.json

Qwen3-30B-A3B's shape, 12 of 48 layers, synthetic weights in w4a16_g128, a step replayed from one graph. A command
measures `fate` and `fate:cpu=1` in turns on the same steps, at all budgets. With --copier another program moves
pinned memory to the device at 25 GB/s meanwhile: the link has then about what PCIe 4 has. Runs whose name holds
one of --words alone.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

import experiment
import report
import side_by_side

STORED = report.DATA / "h200-sharing.json"
ALONE, SHARED = "fate", "fate:cpu=1"
BUDGETS = "10%,25%,50%,90%"


def runs():
    """(workload, batch, threads; 0: all)"""
    for batch in (1, 8, 3, 32):
        for workload in ("mixed", "uniform"):
            yield workload, batch, 0
    for threads in (4, 8):
        yield "uniform", 1, threads


def name_of(workload, batch, threads, link):
    return f"{link} {workload} {batch}" + (f" {threads} threads" if threads else "")


def run(bench, workload, batch, threads=0, repeats=5):
    """A run as it is kept."""
    command = [bench, "decode", "--backend", "cuda", "--synthetic", "qwen3-30b:12", "--schemes", "w4a16_g128",
               "--strategy", f"{ALONE};{SHARED}", "--budget", BUDGETS, "--workload", workload, "--batch", str(batch),
               "--graph", "--warm", "96" if batch < 8 else "48", "--steps", "24", "--repeats", str(repeats),
               "--threads", str(threads), "--quiet", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    result = json.loads(done.stdout)
    return {"commit": result["commit"], "device": result["device"], "command": report.command_of(result["command"]),
            "cells": {f"{g['budget']} {v['strategy']}": {"ms": v["repetition_ms"], "hits": v["hit_ratio"]}
                      for g in result["groups"] for v in g["variants"]}}


def measure(options, link):
    data = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    for workload, batch, threads in runs():
        name = name_of(workload, batch, threads, link)
        if not any(word in name for word in options.words):
            continue
        data["runs"][name] = run(options.bench, workload, batch, threads)
        options.out.write_text(json.dumps(data, indent=1) + "\n")
        print(name, {k: round(time(c), 3) for k, c in data["runs"][name]["cells"].items()}, flush=True)


def time(cell):
    return statistics.median(cell["ms"])


def take(paths):
    data = {"runs": {}}
    for path in paths:
        data["runs"].update(json.loads(path.read_text())["runs"])
    STORED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load():
    return json.loads(STORED.read_text(encoding="utf-8"))["runs"]


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
