#!/usr/bin/env python3
"""What the loss that `graded` is allowed costs in perplexity: docs/results/data/graded-quality.json.

    tests/research/quality_graded.py --bin build/release/bin tiny-moe=examples/models/tiny-moe small-moe=DIR

Held-out texts, teacher-forced decode, one token a step, a window a request, on the virtual clock: a rerun gives
the same figures. Packs are quantized by HQQ. Runs are kept in --work and not repeated.
"""
import argparse
import json
import pathlib
import subprocess

import envelope
import experiment
import quality_lib as lib
import report

STORED = report.DATA / "graded-quality.json"
HIGH, LOW = "bf16", "w2a16_g64_asym"
KEYS = ("loss=0.005", "loss=0.05", "loss=0.05,alpha=0")
BUDGETS = ("25%",)
LINK = "0.5/s"
TOKENS, WINDOW = 1024, 256


class Experiment:
    def __init__(self, args):
        self.args = args
        args.work.mkdir(parents=True, exist_ok=True)
        self.runs = experiment.Runs(str(args.work / "runs.jsonl"))

    def pack(self, model, path):
        pack = self.args.work / f"{model}.pack"
        if not (pack / "moert.json").exists():
            subprocess.run([self.args.bin / "moert-pack", "quantize", "--model", path, "--schemes", f"{HIGH},{LOW}",
                            "--method", "hqq", "--out", pack, "--threads", "1", "--quiet"], check=True)
        return pack

    def run(self, model, path, domain, strategy, budget):
        tokens = lib.ROOT / "tests" / "data" / "eval" / f"{domain}.tokens.u16"
        # Where nothing moves, a window a step gives the same bits as a token a step, sooner.
        steps = [] if strategy.startswith("resident") else ["--step-tokens", "1", "--batch", "1"]
        command = [self.args.bin / "moert-run", "ppl", "--model", path, "--experts", self.pack(model, path), "--tokens",
                   tokens, "--limit", TOKENS, "--window", WINDOW, *steps, "--backend", "cpu", "--threads", "1",
                   "--clock", "virtual", *envelope.link_flags(model, LINK), "--budget", budget, "--strategy", strategy,
                   "--json", "-", "--quiet"]
        return self.runs.get([str(c) for c in command], [model, domain, strategy, budget, TOKENS, WINDOW, LINK])


def cell(e, model, path, keys, budget):
    """Loss in percent with its standard error, and the shares of the routing mass answered low and substituted."""
    exact = [e.run(model, path, d, f"resident:scheme={HIGH}", "100%") for d in lib.DOMAINS]
    runs = [e.run(model, path, d, f"graded:hi={HIGH},lo={LOW},{keys}", budget) for d in lib.DOMAINS]
    by_domain = {d: experiment.loss_percent(a["window_nll"], b["window_nll"]) for d, a, b in zip(lib.DOMAINS, exact, runs)}
    pooled = [[v for r in rs for v in r["window_nll"]] for rs in (exact, runs)]
    by_domain["all"] = experiment.loss_percent(*pooled)
    share = lambda what: round(lib.mean([r["routing"][what] for r in runs]), 5)
    return {"loss": {d: [round(m.mean, 3), round(m.error, 3)] for d, m in by_domain.items()},
            "low": share("mass_low"), "substituted": share("mass_substituted")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=lib.ROOT / "build" / "release" / "bin")
    parser.add_argument("--work", type=pathlib.Path, default=lib.ROOT / "build" / "quality-graded")
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    args = parser.parse_args()
    e = Experiment(args)
    data = lib.load(STORED)
    for model, path in (m.split("=", 1) for m in args.models):
        for budget in BUDGETS:
            for keys in KEYS:
                data[f"{model} {budget} {keys}"] = cell(e, model, path, keys, budget)
                lib.save(STORED, data)
                print(model, budget, keys, json.dumps(data[f"{model} {budget} {keys}"]), flush=True)


if __name__ == "__main__":
    main()
