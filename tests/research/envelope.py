#!/usr/bin/env python3
"""Strategies on recorded routing, against the best of the others: docs/results/envelope.md.

    envelope.py record  --bin build/release/bin --models DIR [--tuning]     records the routing, once
    envelope.py measure --bin build/release/lab --models DIR [--part exact|bounded|auto]

DIR holds tiny-moe, small-moe, eval and calib (token files). Routing is recorded by teacher-forced decode of
the evaluation texts (held out) and of the calibration texts (tuning), 512 steps of 1, 3 and 8 sequences; what
a strategy does with it is replayed on the virtual clock, 64 steps uncounted. The same figures on any machine.
Held-out runs are kept in docs/results/data/envelope.json and not repeated; --tuning records and replays the
tuning texts and keeps nothing.
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import subprocess

import quality_lib as lib
import report

STORED = report.DATA / "envelope.json"
H200 = report.ROOT / "tests" / "research" / "profiles" / "h200.json"
SCHEMES = "bf16,w8a16_g128,w4a16_g128,w3a16_g128_asym,w2a16_g64_asym"
MODELS = ("small-moe", "tiny-moe")
BATCHES = (1, 3, 8)
STEPS, WINDOW, WARM = 512, 256, 64
EXPERTS = {"small-moe": 192, "tiny-moe": 256}
RECORD = {"small-moe": 196608, "tiny-moe": 49152}  # bytes of an expert in bf16
# The links of the transfers. Shares of the model a second, with the profile "reference" (a layer
# takes 0.5 ms) and with that of an H200 as if a record had the bytes of Qwen3-30B-A3B's in bf16;
# and the window of the Fate paper's machine, two transfers.
LINKS = {"0.1/s": "0.1 of the model a second", "0.5/s": "0.5 of the model a second", "h16": "H200, 16 GB/s",
         "h55": "H200, 55 GB/s", "w2": "two transfers a layer"}
QWEN3_RECORD = 9437184

OURS = "fate"
EXACT_RIVALS = ("fate:percentile=75,eviction=arc", "on-demand", "on-demand+importance.residency", "activation-path")
EXACT_BUDGETS = (10, 25, 50, 75, 90)
BASELINES = ("expertflow-2510-like", "moe-infinity-like")

# A share of each request's routing mass that may be lost: answered in w2, or substituted. No CPU beside the
# device: of experts this small it would compute all misses in no time.
LOSS = 0.05
BOUNDED = (f"graded:loss={LOSS}",)
BOUNDED_RIVALS = (f"importance:max_mass={LOSS}", f"importance:alpha=0.3,max_mass={LOSS}", "fate",
                  "hybrimoe-like:fill=1", "never-stall")
BOUNDED_BUDGETS = (25, 50)
BOUNDED_LINKS = ("0.5/s", "w2")

# `auto` with and without an accepted loss, and what else keeps to it. Exact rivals are those above.
ACCEPTED = 0.005
AUTO = ("auto", f"auto:loss={ACCEPTED:g}")
AUTO_RIVALS = (f"graded:loss={ACCEPTED:g}", f"importance:max_mass={ACCEPTED:g}", f"importance:alpha=0.3,max_mass={ACCEPTED:g}")


def link_flags(model, link):
    if link.endswith("/s"):
        return ["--link-gbps", f"{RECORD[model] * EXPERTS[model] * float(link[:-2]) / 1e9:.6g}"]
    if link == "w2":
        return ["--link-gbps", f"{RECORD[model] / (500_000 / 2 - 5_000):.6g}"]
    gbps = float(link[1:]) * RECORD[model] / QWEN3_RECORD
    return ["--profile", H200, "--attention-us", "20", "--link-gbps", f"{gbps:.6g}"]


def trace_of(args, kind, model, domain, batch):
    return args.work / f"{kind}-{model}-{domain}-{batch}.trace"


def kind_of(args):
    return "tuning" if args.tuning else "held"


def record(args):
    for model in MODELS:
        pack = args.work / f"{model}-pack"
        if not (pack / "moert.json").exists():
            subprocess.run([args.bin / "moert-pack", "quantize", "--model", args.models / model, "--schemes", SCHEMES,
                            "--method", "rtn", "--out", pack, "--threads", "1", "--quiet"], check=True)
        kind = kind_of(args)
        for domain, batch in itertools.product(lib.DOMAINS, BATCHES):
            trace = trace_of(args, kind, model, domain, batch)
            if trace.exists():
                continue
            tokens = (args.models / "eval" / f"{domain}.tokens.u16" if kind == "held" else
                      args.models / "calib" / f"{lib.CALIBRATION[domain]}.tokens.u16")
            part = trace.with_suffix(".part")
            subprocess.run([args.bin / "moert-run", "ppl", "--model", args.models / model, "--experts", pack, "--tokens",
                            tokens, "--limit", str(STEPS * batch), "--window", str(WINDOW), "--batch", str(batch),
                            "--step-tokens", "1", "--clock", "virtual", "--threads", "1", "--budget", "100%",
                            "--strategy", "on-demand:scheme=bf16", "--trace", part, "--quiet"], check=True)
            part.rename(trace)


def replay(args, kind, cell, spec):
    """[ms a step, hit ratio, worst share of a request's mass answered low, ... substituted], or None if the strategy
    needs more bytes. A budget is a share of all experts in bf16, the fixed parts of the engine beside it."""
    model, domain, batch, budget, link = cell
    command = [args.bin / "moert-sim", "--trace", trace_of(args, kind, model, domain, batch), "--strategy", report.today(spec),
               "--budget", f"{budget}%", *link_flags(model, link), "--warm", str(WARM), "--json", "-", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    r = json.loads(done.stdout)
    routing = r["routing"]
    low = max(routing["worst_request_mass_low"], routing["mass_low"])  # without a bound no request is looked at alone
    return [round(v, 4) for v in (r["tpot_ms"]["mean"], r["experts"]["hit_ratio"], low, routing["worst_request_mass"])]


def cells(part):
    budgets = BOUNDED_BUDGETS if part == "bounded" else EXACT_BUDGETS
    links = LINKS if part == "exact" else BOUNDED_LINKS
    return list(itertools.product(MODELS, lib.DOMAINS, BATCHES, budgets, links))


def specs(part):
    return {"exact": (OURS, *EXACT_RIVALS, *BASELINES), "bounded": (*BOUNDED, *BOUNDED_RIVALS),
            "auto": (*AUTO, *AUTO_RIVALS)}[part]


def name_of(cell, spec):
    return " ".join(map(str, (*cell, spec)))


def measure(args):
    kind = kind_of(args)
    data = {"cells": {}} if args.tuning else (lib.load(STORED) or {"commit": args.commit, "cells": {}})
    wanted = [(cell, spec) for cell in cells(args.part) for spec in specs(args.part)
              if name_of(cell, spec) not in data["cells"]]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda run: replay(args, kind, *run), wanted)
        for i, ((cell, spec), result) in enumerate(zip(wanted, results), 1):
            data["cells"][name_of(cell, spec)] = result
            if not args.tuning and (i % 300 == 0 or i == len(wanted)):
                lib.save(STORED, data)
    print(text(data["cells"], args.part))


def earlier(data):
    """The cells with `fate` as it was before its layers shared their slots."""
    return {**data["cells"], **{f"{cell} {OURS}": result for cell, result in data["before"].items()}}


def over(stored, cell, ours, rivals):
    """Time of the fastest rival over ours, or None."""
    mine = stored.get(name_of(cell, ours))
    theirs = [stored[name_of(cell, r)] for r in rivals if stored.get(name_of(cell, r))]
    return min(t[0] for t in theirs) / mine[0] if mine and theirs else None


def shares(stored, part, ours, rivals, where=lambda cell: True):
    values = [over(stored, c, ours, rivals) for c in cells(part) if where(c)]
    return [v for v in values if v is not None]


def summary(values):
    return f"{lib.mean(values):.2f} ({min(values):.2f})" if values else "-"


def exact_rows(stored):
    """[budget, then of every link the mean and the least of best rival over ours]."""
    return [[f"{budget} %"] + [summary(shares(stored, "exact", OURS, EXACT_RIVALS,
                                              lambda c, b=budget, l=link: c[3] == b and c[4] == l)) for link in LINKS]
            for budget in EXACT_BUDGETS]


def rival_rows(stored):
    """[rival, then of every link mean and least of its time over ours], then the best of the four."""
    named = {r: (r,) for r in (*EXACT_RIVALS, *BASELINES)}
    named["the best of the first four"] = EXACT_RIVALS
    return [[f"`{n}`" if "best" not in n else n] + [
        summary(shares(stored, "exact", OURS, rivals, lambda c, l=link: c[4] == l)) for link in LINKS]
        for n, rivals in named.items()]


def bounded_rows(stored):
    """[spec, then of every link the mean of its ms over those of the first, and the largest share lost]."""
    rows = []
    for spec in specs("bounded"):
        row = [f"`{spec}`"]
        for link in BOUNDED_LINKS:
            pairs = [(stored.get(name_of(c, spec)), stored.get(name_of(c, BOUNDED[0]))) for c in cells("bounded") if c[4] == link]
            known = [(a, b) for a, b in pairs if a and b]
            row.append(f"{lib.mean([a[0] / b[0] for a, b in known]):.2f} ({100 * max(a[2] + a[3] for a, b in known):.1f} %)"
                       if known else "-")
        rows.append(row)
    return rows


def auto_comparisons():
    """[what it says, spec, rivals]."""
    exact = (*EXACT_RIVALS, *BASELINES)
    return [("`auto` against all but `fate`", AUTO[0], exact),
            (f"`{AUTO[1]}` against all", AUTO[1], (OURS, *exact, *AUTO_RIVALS)),
            (f"`{AUTO[1]}` against all but `graded`", AUTO[1], (OURS, *exact, *AUTO_RIVALS[1:]))]


def auto_rows(stored):
    """[what, cells, in how many at least as fast as the fastest other, and within 1 %, mean, least, largest loss]."""
    rows = []
    for what, auto, rivals in auto_comparisons():
        values = shares(stored, "auto", auto, rivals)
        lost = [stored[name_of(c, auto)] for c in cells("auto") if stored.get(name_of(c, auto))]
        if values:
            rows.append([what, str(len(values)), str(sum(v >= 1 for v in values)), str(sum(v >= 0.99 for v in values)),
                         f"{lib.mean(values):.3f}", f"{min(values):.3f}", f"{100 * max(r[2] + r[3] for r in lost):.2f} %"])
    return rows


def behind(stored):
    """Cells in which ours is more than 1 % behind the best rival, the worst first."""
    found = [(over(stored, c, OURS, EXACT_RIVALS), c) for c in cells("exact")]
    return sorted((v, c) for v, c in found if v is not None and v < 0.99)


def text(stored, part):
    rows = {"exact": exact_rows, "bounded": bounded_rows, "auto": auto_rows}[part](stored)
    lines = [" | ".join(r) for r in rows]
    if part == "exact":
        all_of = shares(stored, "exact", OURS, EXACT_RIVALS)
        lines += [" | ".join(r) for r in rival_rows(stored)]
        lines += [f"{len(all_of)} cells: mean {lib.mean(all_of):.3f}, least {min(all_of):.3f}"]
        lines += [f"{v:.3f} {' '.join(map(str, c))}" for v, c in behind(stored)]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "measure"])
    parser.add_argument("--bin", type=pathlib.Path, default=report.ROOT / "build" / "release" / "lab")
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, default=report.ROOT / "build" / "envelope")
    parser.add_argument("--part", choices=["exact", "bounded", "auto"], default="exact")
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="replays at a time")
    parser.add_argument("--commit", default="", help="of the tools, to be stored")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    record(args) if args.what == "record" else measure(args)


if __name__ == "__main__":
    main()
