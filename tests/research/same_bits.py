#!/usr/bin/env python3
"""Strategies of the same bits in moert-run, whose host predicts an attention ahead: docs/results/envelope.md.

    same_bits.py --bin DIR --before DIR --models DIR --commit X --before-commit Y [--jobs N] [--tuning]

DIR of --bin and --before hold moert-run of the two commits; that of --models tiny-moe, small-moe, eval and calib (token
files). Teacher-forced decode of 512 tokens a text, batch 1, on the virtual clock: the same figures on any machine. Runs
are kept in docs/results/data/same-bits.json and not repeated; --tuning runs the calibration texts and keeps nothing.
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import subprocess

import experiment
import quality_lib as lib
import report

STORED = report.DATA / "same-bits.json"
TOKENS, WINDOW = 512, 128
BUDGETS = (10, 22, 37, 55, 75, 90)
LINKS = {"tiny-moe": (0.1, 0.15, 0.25, 0.35, 1), "small-moe": (0.5, 1, 4)}
OURS, BEFORE = "fate", "fate, before"
SPECS = (OURS, BEFORE, "importance:alpha=0", "on-demand+importance.residency")


def cells():
    return [(model, budget, link) for model, links in LINKS.items() for budget, link in itertools.product(BUDGETS, links)]


def name_of(cell, text, spec):
    return " ".join(map(str, (*cell, text, spec)))


def run(args, cell, text, spec):
    """ms a step."""
    model, budget, link = cell
    tokens = (args.models / "calib" / f"{lib.CALIBRATION[text]}.tokens.u16" if args.tuning else
              args.models / "eval" / f"{text}.tokens.u16")
    folder, strategy = (args.before, OURS) if spec == BEFORE else (args.bin, spec)
    command = [folder / "moert-run", "ppl", "--model", args.models / model, "--tokens", tokens, "--limit", str(TOKENS),
               "--window", str(WINDOW), "--step-tokens", "1", "--clock", "virtual", "--threads", "1", "--strategy", strategy,
               "--budget", f"{budget}%", "--link-gbps", str(link), "--json", "-", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return round(json.loads(done.stdout)["tpot_ms"]["mean"], 4)


def over(stored, cell, spec):
    """Time of a strategy over ours, of every text."""
    return [stored[name_of(cell, t, spec)] / stored[name_of(cell, t, OURS)] for t in lib.DOMAINS]


def summary(values):
    return f"{lib.mean(values):.3f} ({min(values):.3f})"


def rows(stored):
    """[strategy, of every model mean and least over cells (means over texts), least of a text, how many are below 0.99]."""
    found = []
    for spec in SPECS[1:]:
        row = [spec if spec == BEFORE else f"`{spec}`"]
        for model in LINKS:
            values = [lib.mean(over(stored, c, spec)) for c in cells() if c[0] == model]
            row.append(summary(values))
        every = [v for c in cells() for v in over(stored, c, spec)]
        found.append([*row, f"{min(every):.3f}", f"{sum(v < 0.99 for v in every)} of {len(every)}"])
    return found


def table():
    stored = lib.load(STORED)["cells"]
    head = ["time over that of `fate`", *(f"{m}: mean (least) of cells" for m in LINKS), "least of a text", "below 0.99"]
    return experiment.table(head, rows(stored))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("--bin", "--before", "--models"):
        parser.add_argument(folder, type=pathlib.Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--before-commit", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tuning", action="store_true")
    args = parser.parse_args()
    data = {} if args.tuning else lib.load(STORED)
    data = data or {"commit": args.commit, "before": {"commit": args.before_commit}, "cells": {}}
    wanted = [w for w in itertools.product(cells(), lib.DOMAINS, SPECS) if name_of(*w) not in data["cells"]]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for i, (w, ms) in enumerate(zip(wanted, pool.map(lambda w: run(args, *w), wanted)), 1):
            data["cells"][name_of(*w)] = ms
            if not args.tuning and (i % 100 == 0 or i == len(wanted)):
                lib.save(STORED, data)
    for spec in rows(data["cells"]):
        print(" | ".join(spec))


if __name__ == "__main__":
    main()
