#!/usr/bin/env python3
"""Perplexity, time and bytes of every strategy on equal budgets: docs/results/frontier.md.

    frontier.py measure --bin build/release/bin tiny-moe=examples/models/tiny-moe small-moe=DIR [--work DIR]

Teacher-forced decode, one token a step, on the virtual clock: the same figures on any machine. A budget is
everything the engine holds, in bytes. What does not fit is left out. What is stored already is not run
again; the figures are kept in docs/results/data/frontier.json.
"""
import argparse
import json
import pathlib
import subprocess

import quality_lib as lib
import report

W8, W4, W3, W2 = "w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym"
SCHEMES = ["bf16", W8, W4, W3, W2]
PAIRS = [("bf16", W4), (W8, W2), (W4, W2)]
BUDGETS = {"tiny-moe": [3.25, 4.25, 5.5, 7.5], "small-moe": [11.5]}  # MiB
LIMIT, WINDOW, LINK = 1024, 256, 0.08
STORED = report.DATA / "frontier.json"


def specs():
    for scheme in SCHEMES:
        yield f"resident:scheme={scheme}"
        yield f"on-demand:scheme={scheme}"
        yield f"fate:scheme={scheme}"
        yield f"on-demand:scheme={scheme}+importance.residency"
        yield f"importance:scheme={scheme}"
    for hi, lo in PAIRS:
        yield f"dynaexq:hi={hi},lo={lo}"
        yield f"never-stall:hi={hi},lo={lo}"


def pack_of(args, name, model):
    pack = args.work / f"{name}-hqq"
    if not (pack / "moert.json").exists():
        subprocess.run([args.bin / "moert-pack", "quantize", "--model", model, "--schemes", ",".join(SCHEMES),
                        "--method", "hqq", "--out", pack, "--threads", "1", "--quiet"], check=True)
    return pack


def run(args, model, pack, spec, mib):
    """Means over the domains, or None if the strategy needs more bytes."""
    nll, ms, peaks, hits, low = {}, [], [], [], []
    for domain in lib.DOMAINS:
        done = subprocess.run(
            [args.bin / "moert-run", "ppl", "--model", model, "--experts", pack, "--tokens",
             args.eval / f"{domain}.tokens.u16", "--limit", str(LIMIT), "--window", str(WINDOW), "--step-tokens", "1",
             "--clock", "virtual", "--link-gbps", str(LINK), "--budget", f"{round(mib * 2**20)}", "--threads", "1",
             "--strategy", spec, "--json", "-", "--quiet"], capture_output=True, text=True)
        if done.returncode == 2:
            return None
        if done.returncode:
            raise SystemExit(f"{spec}: {done.stderr}")
        result = json.loads(done.stdout)
        nll[domain] = lib.rounded(result["window_nll"])
        ms.append(result["tpot_ms"]["mean"])
        peaks.append(result["peak_bytes"])
        hits.append(result["experts"]["hit_ratio"])
        low.append(result["experts"]["low_answers"])
    return {"nll": nll, "ms": round(lib.mean(ms), 4), "peak_bytes": max(peaks), "hit_ratio": round(lib.mean(hits), 4),
            "low_answers": round(lib.mean(low), 4)}


def measure(args):
    data = lib.load(STORED) or {"commit": args.commit, "limit": LIMIT, "window": WINDOW, "link_gbps": LINK, "cells": {}}
    for entry in args.models:
        name, _, model = entry.partition("=")
        pack = pack_of(args, name, model)
        for mib in BUDGETS[name]:
            for spec in specs():
                key = f"{name} {mib} {spec}"
                if key not in data["cells"]:
                    data["cells"][key] = run(args, model, pack, spec, mib)
                    lib.save(STORED, data)
                    print(key, flush=True)


def cells(name, mib):
    """[(ms, perplexity, spec)] of one model and budget, fastest first."""
    stored = lib.load(STORED)["cells"]
    prefix = f"{name} {mib} "
    return sorted((c["ms"], lib.perplexity(lib.pooled(c["nll"])), key[len(prefix):])
                  for key, c in stored.items() if key.startswith(prefix) and c)


def measured():
    """(model, MiB) of the budgets of which every strategy has run."""
    stored = lib.load(STORED)["cells"]
    return [(name, mib) for name, budgets in BUDGETS.items() for mib in budgets
            if all(f"{name} {mib} {spec}" in stored for spec in specs())]


def best(points):
    """Those that no other is both faster and better than."""
    front = []
    for ms, perplexity, spec in points:
        if not front or perplexity < front[-1][1] - 1e-9:
            front.append((ms, perplexity, spec))
    return front


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure"])
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--bin", type=pathlib.Path, default=report.ROOT / "build" / "release" / "bin")
    parser.add_argument("--eval", type=pathlib.Path, default=report.ROOT / "tests" / "data" / "eval")
    parser.add_argument("--work", type=pathlib.Path, default=report.ROOT / "build" / "frontier")
    parser.add_argument("--commit", default="", help="of the tools, to be stored")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    measure(args)


if __name__ == "__main__":
    main()
