#!/usr/bin/env python3
"""A plan that moves beside a static plan and dynaexq, in pools of the same bytes: docs/results/data/moving-plan.json.

    tests/research/quality_moving_plan.py --calib DIR --binaries build/release/lab tiny-moe=examples/models/tiny-moe small-moe=DIR

The windows, models and bytes of quality_dynaexq.py, whose results stand beside. `moving-plan` and the static plans
have one calibration, of other texts. A plan is allocated as large as its records in their blocks fit the pool that
dynaexq has: records are padded to 4 KiB there, which is much of a small model's. Runs are kept in --work and not
repeated.
"""
import json
import os
import subprocess
import sys

import experiment
import quality_dynaexq as q
import quality_dynaexq_page as page
import quality_lib as lib
import quality_rank as rank
import report

STORED = report.DATA / "moving-plan.json"
SPARE = 2
# By the first of them.
VERSIONS = {"w8": ["w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym"],
            "w4": ["w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym", "w2a16_g-1_asym"]}
SHIFT_PAIR, SHIFT_SHARE = q.PAIRS[1], 0.25
COLUMNS = ["static mixed", "oracle", "dynaexq", "plan", "moving-plan"]


class Experiment(rank.Experiment):
    probed = q.PLAN_SCHEMES

    def versions_pack(self, model, first):
        schemes = VERSIONS[first]
        path = os.path.join(self.args.work, f"{model}.{first}.pack")
        if not os.path.exists(path):
            subprocess.run([self.tool("moert-pack"), "quantize", "--model", self.models[model], "--schemes",
                            ",".join(schemes), "--method", "hqq", "--threads", "1", "--out", path, "--quiet"],
                           check=True)
        return path

    def packed_job(self, model, first, tokens, strategy, budget="100%", window=q.WINDOW):
        command = self.command(model, tokens, strategy, budget, window, self.versions_pack(model, first))
        return command, [model, VERSIONS[first], os.path.basename(tokens), strategy.replace(self.args.work, ""),
                         str(budget), window]

    def moving_job(self, model, first, tokens, pool, window=q.WINDOW):
        """An engine whose experts take `pool` bytes; 100 % is the fixed parts and all experts in the first version."""
        short = self.evaluated(q.DOMAINS[0], 1)
        spec = f"dynaexq:versions={'/'.join(VERSIONS[first])},spare={SPARE},calibration={self.losses(model)}"
        whole = self.get(self.packed_job(model, first, short, spec))
        highest = self.get(self.packed_job(model, first, short, f"resident:scheme={VERSIONS[first][0]}"))
        return self.packed_job(model, first, tokens, spec, whole["budget_bytes"] - highest["pool_bytes"] + pool, window)

    def pool_plan_job(self, model, pool, streams, window=q.WINDOW):
        """The largest plan whose records fit a pool, over token files."""
        base = os.path.join(self.args.work, f"{model}-{pool}")
        make = [[self.tool("moert-pack"), "allocate", "--calibration", self.losses(model), "--name", "plan", "--quiet",
                 "--force", "--out", base + ".plan", "--budget"],
                [self.tool("moert-pack"), "quantize", "--model", self.models[model], "--plan", base + ".plan",
                 "--threads", "1", "--out", base + ".planned", "--quiet", "--force", "--method"]]
        runs = [self.command(model, s, "resident", pack=base + ".planned", window=window) for s in streams]
        return [sys.executable, os.path.abspath(__file__), "pool-plan", str(pool), json.dumps(make),
                json.dumps(runs)], ["pool-plan", model, pool, [os.path.basename(s) for s in streams]]


def pool_plan(pool, make, runs):
    pool, make, runs = int(pool), json.loads(make), json.loads(runs)

    def called(command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def tried(capacity, method):
        called(make[0] + [str(capacity)])
        called(make[1] + [method])
        return json.loads(called(runs[0] + ["--limit", "256"]))["pool_bytes"]

    low, high = pool // 2, pool
    while high - low > pool // 200:
        at = (low + high) // 2
        low, high = (at, high) if tried(at, "rtn") <= pool else (low, at)
    tried(low, "hqq")
    return [json.loads(called(run)) for run in runs]


def measure(e, pairs, shares):
    equal = lib.load(q.JSON)["equal"]
    for model in e.models:
        e.prepare(model)
        streams = [e.evaluated(d, rank.WINDOWS) for d in q.DOMAINS]
        for pair, share in [(p, s) for p in pairs for s in shares]:
            name = f"{pair[0]} {pair[1]} {share}"
            pool = equal[model][name]["dynaexq"]["bytes"]
            moved = [e.get(e.moving_job(model, e.args.first, s, pool)) for s in streams]
            plan = e.get(e.pool_plan_job(model, pool, streams))
            new = {"moving-plan": q.entry(moved) | {"moves": q.moves(moved), "spare": SPARE}, "plan": q.entry(plan)}
            data = lib.load(STORED)  # another process may have added its cells
            data.setdefault("equal", {})[f"{model} {name} {e.args.first}"] = new
            lib.save(STORED, data)
            print(" | ".join(row(f"{model} {name} {e.args.first}", new)), flush=True)


def measure_shift(e):
    equal = lib.load(q.JSON)["equal"]
    for model in e.models:
        e.prepare(model)
        pool = equal[model][f"{SHIFT_PAIR[0]} {SHIFT_PAIR[1]} {SHIFT_SHARE}"]["dynaexq"]["bytes"]
        moved = e.get(e.moving_job(model, e.args.first, e.shifting(), pool, q.SHIFT_WINDOW))
        plan = e.get(e.pool_plan_job(model, pool, [e.shifting()], q.SHIFT_WINDOW))[0]
        data = lib.load(STORED)
        data.setdefault("shift", {})[model] = {
            "moving-plan": lib.rounded(moved["window_nll"]), "plan": lib.rounded(plan["window_nll"]),
            "moves": q.moves([moved]), "bytes": [moved["pool_bytes"], plan["pool_bytes"]]}
        lib.save(STORED, data)


def row(name, new):
    """model, pair, share, MiB, the share of the loss recovered by each method, and paired differences."""
    model, high, low, share, first = name.split(" ")
    cell, lo, hi = page.of_cell(lib.load(q.JSON)["equal"][model], (high, low), share)
    nll = {m: rank.first_blocks(cell[m]["nll"]) for m in COLUMNS[:3]} | {m: new[m]["nll"] for m in COLUMNS[3:]}
    lo, hi = rank.first_blocks(lo), rank.first_blocks(hi)
    recovered = {m: page.recovered(lo, hi, v) for m, v in nll.items()}
    return [model, page.pair_name((high, low)), f"{100 * float(share):g} %", page.mib(cell["dynaexq"]["bytes"])] + [first] + [f"{recovered[m].mean:.0f}" for m in COLUMNS] + [rank.ahead(lo, hi, nll, "moving-plan", m) for m in ("plan", "dynaexq")]


def table():
    columns = ["model", "hi, lo", "n_hi", "MiB", "first", *COLUMNS[:4], "`moving-plan`", "less plan", "less `dynaexq`"]
    equal = lib.load(STORED)["equal"]
    return experiment.table(columns, [row(name, equal[name]) for name in sorted(equal)])


def shift_table():
    """Perplexity over the whole stream."""
    old, new = lib.load(q.JSON)["shift"], lib.load(STORED)["shift"]
    names = ["static low", "static mixed, offline", "dynaexq"]
    rows = []
    for model in new:
        windows = {n: old[model][n] for n in names} | {n: new[model][n] for n in ("plan", "moving-plan")}
        windows["static high"] = old[model]["static high"]
        mean, error = lib.difference(windows["moving-plan"], windows["plan"])
        rows.append([model] + [f"{lib.perplexity(w):.3f}" for w in windows.values()] +
                    [f"{100 * mean:+.2f} ± {100 * error:.2f}"])
    return experiment.table(["", *names, "plan", "`moving-plan`", "static high", "less plan, nats, %"], rows)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "pool-plan":
        print(json.dumps(pool_plan(*sys.argv[2:])))
        return
    parser = rank.arguments(__doc__)
    parser.add_argument("--first", choices=list(VERSIONS), default="w8", help="of moving-plan's versions")
    parser.add_argument("--shift", action="store_true", help="the stream that changes its domain, and nothing else")
    args = parser.parse_args()
    e = Experiment(args)
    if args.shift:
        measure_shift(e)
    else:
        measure(e, [q.PAIRS[i] for i in args.pairs], args.shares)


if __name__ == "__main__":
    main()
