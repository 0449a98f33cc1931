#!/usr/bin/env python3
"""Who is high by what the low version costs the model, at equal bytes: docs/results/data/rank-by-loss.json.

    tests/research/quality_rank.py --calib DIR --binaries build/release/lab tiny-moe=examples/models/tiny-moe small-moe=DIR

The windows, schemes and bytes of quality_dynaexq.py, whose results stand beside: `dynaexq:rank=loss` with a
calibration of other texts, and the static plan of the same two schemes and bytes, an expert a scheme, by that
calibration's end-to-end loss. Runs are kept in --work and not repeated.
"""
import argparse
import os
import subprocess

import experiment
import quality_dynaexq as q
import quality_dynaexq_page as page
import quality_lib as lib
import report

STORED = report.DATA / "rank-by-loss.json"
WINDOWS = 13          # of every domain, the first ones of those of quality_dynaexq.py
SCHEMES = ["bf16", "w8a16_g128", "w4a16_g128", "w2a16_g64_asym"]
TOKENS, PROBE = 6144, 2048
METHODS = ["static mixed", "oracle", "dynaexq"]   # as stored
NEW = ["by loss", "two-scheme plan"]


class Experiment(q.Experiment):
    probed = SCHEMES  # whose losses the calibration measures

    def losses(self, model):
        path = os.path.join(self.args.work, f"{model}.probed")
        if not os.path.exists(path):
            subprocess.run([self.tool("moert-pack"), "calibrate", "--model", self.models[model], "--tokens",
                            lib.calibration_files(self.args.calib), "--calibration-tokens", str(TOKENS), "--schemes",
                            ",".join(self.probed), "--method", "hqq", "--probe-tokens", str(PROBE), "--threads", "1",
                            "--out", path, "--quiet"], check=True)
        return path

    def prepare(self, model):
        if not os.path.exists(self.pack(model)):
            subprocess.run([self.tool("moert-pack"), "quantize", "--model", self.models[model], "--schemes",
                            ",".join(q.SCHEMES), "--method", "hqq", "--threads", "1", "--out", self.pack(model),
                            "--quiet"], check=True)
        self.losses(model)

    def loss_jobs(self, model, pair, share):
        keys = f"{q.keys_of(pair, share)},rank=loss,calibration={self.losses(model)}"
        return [self.job(model, self.evaluated(d, WINDOWS), f"dynaexq:{keys}") for d in q.DOMAINS]

    def two_scheme_job(self, model, pair, share, size):
        name = f"{model}-{pair[0]}-{pair[1]}-{share}"
        plan, pack = (os.path.join(self.args.work, f"{name}.{x}") for x in ("plan", "planned"))
        commands = [[self.tool("moert-pack"), "allocate", "--calibration", self.losses(model), "--budget", str(size),
                     "--granularity", "expert", "--schemes", ",".join(pair), "--loss", "end-to-end", "--name", "plan",
                     "--out", plan, "--quiet", "--force"],
                    [self.tool("moert-pack"), "quantize", "--model", self.models[model], "--plan", plan, "--method",
                     "hqq", "--threads", "1", "--out", pack, "--quiet", "--force"]]
        commands += [self.command(model, self.evaluated(d, WINDOWS), "resident", pack=pack) for d in q.DOMAINS]
        return self.helper("plan", [name, WINDOWS, size], plan, q.json.dumps(commands))


def first_blocks(nll):
    """Of blocks of all domains those that lie in the first WINDOWS windows."""
    each, wanted = len(nll) // len(q.DOMAINS), (WINDOWS - q.WARM) // q.BLOCK
    return [v for d in range(len(q.DOMAINS)) for v in nll[d * each:d * each + wanted]]


def ahead(lo, hi, nll, ours, other):
    """How much more of the loss one method recovers than another, paired."""
    gain = page.recovered(lo, hi, [l - d + b for l, d, b in zip(lo, nll[other], nll[ours])])
    return f"{gain.mean:+.0f} ± {gain.error:.0f}"


def measure(e, pairs, shares):
    data = lib.load(STORED)
    for model in e.models:
        e.prepare(model)
        for pair, share in [(p, s) for p in pairs for s in shares]:
            runs = [e.get(job) for job in e.loss_jobs(model, pair, share)]
            cell = {"by loss": q.entry(runs) | {"moves": q.moves(runs)}}
            planned = e.get(e.two_scheme_job(model, pair, share, runs[0]["pool_bytes"]))
            cell["two-scheme plan"] = q.entry(planned["runs"])
            data[f"{model} {pair[0]} {pair[1]} {share}"] = cell
            lib.save(STORED, data)
            print("\n".join(" | ".join(row) for row in rows({f"{model} {pair[0]} {pair[1]} {share}": cell})), flush=True)


def rows(data):
    """[model, pair, share, MiB, then the share of the loss recovered by each method, by loss less hotness]."""
    equal = lib.load(q.JSON)["equal"]
    out = []
    for name, new in data.items():
        model, high, low, share = name.split(" ")
        cell, lo, hi = page.of_cell(equal[model], (high, low), share)
        nll = {m: first_blocks(cell[m]["nll"]) for m in METHODS + ["plan"]} | {m: c["nll"] for m, c in new.items()}
        lo, hi = first_blocks(lo), first_blocks(hi)
        recovered = {m: page.recovered(lo, hi, v) for m, v in nll.items()}
        out.append([model, page.pair_name((high, low)), f"{100 * float(share):g} %", page.mib(new["by loss"]["bytes"])] +
                   [f"{recovered[m].mean:.0f}" if m in recovered else "-" for m in METHODS + NEW + ["plan"]] +
                   [ahead(lo, hi, nll, "by loss", "dynaexq")])
    return out


def table():
    columns = ["model", "hi, lo", "n_hi", "MiB", *METHODS, "`rank=loss`", "plan of the two", "plan", "`rank=loss` less `dynaexq`"]
    return experiment.table(columns, rows(lib.load(STORED)))


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--calib", required=True, help="folder of calibration tokens")
    parser.add_argument("--eval", default=str(lib.ROOT / "tests" / "data" / "eval"))
    parser.add_argument("--binaries", default=str(lib.ROOT / "build" / "release" / "lab"))
    parser.add_argument("--work", default="build/quality-dynaexq")
    parser.add_argument("--pairs", type=int, nargs="*", default=range(len(q.PAIRS)), help="which of the pairs")
    parser.add_argument("--shares", type=float, nargs="*", default=q.SHARES)
    return parser


def main():
    args = arguments(__doc__).parse_args()
    measure(Experiment(args), [q.PAIRS[i] for i in args.pairs], args.shares)


if __name__ == "__main__":
    main()
