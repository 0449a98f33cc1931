#!/usr/bin/env python3
"""What substitution by the expert-cache rule costs, and against what: docs/quality-importance.md.

    scripts/quality_importance.py --moert-run build/dev/bin/moert-run \\
        tiny-moe=examples/models/tiny-moe small-moe=DIR

Everything runs on the virtual clock, so a rerun gives the same page. Runs are kept in --runs and
not repeated; --render only writes the page from them.
"""
import argparse
import os

import experiment
import plot

DOMAINS = ["wikitext2", "gsm8k", "humaneval"]
ALPHAS = [round(0.05 * i, 2) for i in range(13)]
COARSE = [0.1, 0.2, 0.3, 0.45, 0.6]
BATCHES = [1, 3, 8]
BUDGETS = ["25%", "50%"]
# What a replaced slot gets: label, keys of the strategy.
CHOICES = [
    ("best score (the rule)", ""),
    ("best score, displaced weight", ",weights=displaced"),
    ("nearest gate row", ",substitute=nearest"),
    ("nearest gate row, displaced weight", ",substitute=nearest,weights=displaced"),
    ("random", ",substitute=random"),
    ("random, displaced weight", ",substitute=random,weights=displaced"),
    ("skipped", ",substitute=skip"),
]
BOUND = 0.5  # percent of perplexity


class Experiment:
    def __init__(self, args):
        self.args = args
        self.models = dict(m.split("=", 1) for m in args.models)
        self.runs = experiment.Runs(args.runs, run_missing=not args.render)

    def run(self, model, domain, batch, budget, alpha, keys=""):
        a = self.args
        strategy = f"importance:alpha={alpha:g}{keys}"
        how = ["--window", str(a.window), "--limit", str(a.limit), "--step-tokens", "1", "--batch",
               str(batch), "--backend", "cpu", "--threads", "1", "--clock", "virtual",
               "--link-gbps", f"{a.link_gbps:g}", "--budget", budget, "--strategy", strategy]
        command = [a.moert_run, "ppl", "--model", self.models[model], "--tokens",
                   os.path.join(a.tokens, f"{domain}.tokens.u16"), *how, "--json", "-", "--quiet"]
        return self.runs.get(command, ["importance", model, domain, *how])

    def point(self, model, batch, budget, alpha, keys=""):
        """Loss, shares and speed of one setting over all domains; None if a run is missing."""
        base, other, results = [], [], []
        for domain in DOMAINS:
            # alpha = 0 is the model's own routing: the same at every batch and budget.
            zero = self.run(model, domain, 1, BUDGETS[0], 0)
            result = self.run(model, domain, batch, budget, alpha, keys)
            if zero is None or result is None:
                return None
            base += zero["window_nll"]
            other += result["window_nll"]
            results.append(result)
        routing = [r["routing"] for r in results]
        lookups = sum(r["experts"]["lookups"] for r in results)
        hits = sum(sum(r["experts"]["hits"].values()) for r in results)
        return {
            "loss": experiment.loss_percent(base, other),
            "by_domain": [experiment.loss_percent(
                self.run(model, d, 1, BUDGETS[0], 0)["window_nll"], r["window_nll"])
                for d, r in zip(DOMAINS, results)],
            "slots": 100 * sum(r["substituted"] for r in routing) / sum(r["slots"] for r in routing),
            "mass": 100 * sum(r["mass_substituted"] for r in routing) / len(routing),
            "worst_slots": 100 * max(r["worst_request_slots"] for r in routing),
            "worst_mass": 100 * max(r["worst_request_mass"] for r in routing),
            "hit": 100 * hits / lookups,
            "tpot": sum(r["tpot_ms"]["mean"] for r in results) / len(results),
        }


def sweep(e):
    """{(model, batch, budget): [(alpha, point)]}, complete settings only."""
    out = {}
    for batch in BATCHES:
        for budget in BUDGETS:
            for model in e.models:
                points = [(a, e.point(model, batch, budget, a)) for a in ALPHAS]
                if all(p for _, p in points):
                    out[model, batch, budget] = points
    return out


def largest_within(points, bound, errors=0):
    """The largest alpha up to which every loss (plus so many standard errors) is within bound."""
    best = 0
    for alpha, p in points:
        if p["loss"].mean + errors * (p["loss"].error or 0) > bound:
            break
        best = alpha
    return best


def compare(e, model):
    rows, lines = [], []
    for i, (label, keys) in enumerate(CHOICES):
        points = [(a, e.point(model, 1, "25%", a, keys)) for a in COARSE]
        if not all(p for _, p in points):
            return None, None
        rows.append([label] + [f"{experiment.signed(p['loss'])} ({p['slots']:.1f})"
                               for _, p in points])
        lines.append(plot.Line(label, [(p["slots"], p["loss"].mean) for _, p in points],
                               errors=[p["loss"].error for _, p in points], color=i,
                               dash=1 if "displaced" in keys else 0))
    return rows, plot.Panel(f"{model}, batch 1, budget 25 %", "slots replaced, %",
                            "perplexity over exact routing, %", lines)


def write(e, sweeps, comparisons):
    raise SystemExit("page: to be written")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--moert-run", default="build/dev/bin/moert-run")
    parser.add_argument("--tokens", default="tests/data/eval")
    parser.add_argument("--limit", type=int, default=3072, help="tokens of each domain")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--link-gbps", type=float, default=0.05)
    parser.add_argument("--runs", default="build/quality-importance.jsonl")
    parser.add_argument("--render", action="store_true", help="runs nothing")
    parser.add_argument("--page", default="docs/quality-importance.md")
    e = Experiment(parser.parse_args())
    sweeps = sweep(e)
    comparisons = {model: compare(e, model) for model in e.models}
    write(e, sweeps, comparisons)


if __name__ == "__main__":
    main()
