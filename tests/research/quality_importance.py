#!/usr/bin/env python3
"""What substitution by the expert-cache rule costs, and against what: docs/results/data/importance-quality.json.

    tests/research/quality_importance.py --moert-run build/dev/bin/moert-run \\
        tiny-moe=examples/models/tiny-moe small-moe=DIR

Everything runs on the virtual clock, so a rerun gives the same figures. Runs are kept in --runs and
not repeated; --render only reports them.
"""
import argparse
import os

import experiment
import plot
import report

DOMAINS = ["wikitext2", "gsm8k", "humaneval"]
ALPHAS = [round(0.05 * i, 2) for i in range(13)]
COARSE = [0, 0.1, 0.2, 0.3, 0.45, 0.6]
COMPARED = [(0.3, 1), (0.6, 3)]  # alpha, tokens in multiples of --limit
BATCHES = [1, 3, 8]
BUDGETS = ["25%", "50%"]
# Weights of a substitute: label, keys of the strategy. (docs/results/data keeps what other
# substitutes than the rule's cost, "Against other substitutes"; the library has only the rule's.)
CHOICES = [
    ("best score (the rule)", ""),
    ("best score, displaced weight", ",weights=displaced"),
]
BATCHED = 4  # several sequences side by side: tokens in multiples of --limit
BOUND = 0.5  # percent of perplexity
DEFAULT = 0.1  # alpha, as chosen by the sweep
HELD_OUT = 1  # tokens in multiples of --limit, behind those of the sweep


class Experiment:
    def __init__(self, args):
        self.args = args
        self.models = dict(m.split("=", 1) for m in args.models)
        self.runs = experiment.Runs(args.runs, run_missing=not args.render)

    def tokens(self, domain, first):
        """A token file that begins at token `first`."""
        whole = os.path.join(self.args.tokens, f"{domain}.tokens.u16")
        if first == 0:
            return whole
        with open(whole, "rb") as file:
            rest = file.read()[2 * first:]
        path = os.path.join(os.path.dirname(self.args.runs), f"{domain}-{first}.tokens.u16")
        with open(path, "wb") as file:
            file.write(rest)
        return path

    def run(self, model, domain, batch, budget, alpha, keys="", limit=None, first=0):
        a = self.args
        limit = limit or a.limit
        strategy = f"importance:alpha={alpha:g}{keys}"
        how = ["--window", str(a.window), "--limit", str(limit), "--step-tokens", "1", "--batch",
               str(batch), "--backend", "cpu", "--threads", "1", "--clock", "virtual",
               "--link-gbps", f"{a.link_gbps:g}", "--budget", budget, "--strategy", strategy]
        command = [a.moert_run, "ppl", "--model", self.models[model], "--tokens",
                   self.tokens(domain, first), *how, "--json", "-", "--quiet"]
        return self.runs.get(command, ["importance", model, domain, *how, *([first] if first else [])])

    def point(self, model, batch, budget, alpha, keys="", limit=None):
        """Loss, shares and speed of one setting over all domains; None if a run is missing."""
        base, other, results = [], [], []
        for domain in DOMAINS:
            # alpha = 0 is the model's own routing: the same at every batch and budget.
            zero = self.run(model, domain, 1, BUDGETS[0], 0, limit=limit)
            result = self.run(model, domain, batch, budget, alpha, keys, limit)
            if zero is None or result is None:
                return None
            base += zero["window_nll"]
            other += result["window_nll"]
            results.append(result)
        routing = [r["routing"] for r in results]
        prefetch = [r["prefetch"] for r in results]
        issued = max(1, sum(p["issued"] for p in prefetch))

        def ratio(field):
            return sum((p[field] or 0) * p["issued"] for p in prefetch) / issued

        lookups = sum(r["experts"]["lookups"] for r in results)
        hits = sum(sum(r["experts"]["hits"].values()) for r in results)
        return {
            "nll": other,
            "loss": experiment.loss_percent(base, other),
            "by_domain": [experiment.loss_percent(
                self.run(model, d, 1, BUDGETS[0], 0, limit=limit)["window_nll"], r["window_nll"])
                for d, r in zip(DOMAINS, results)],
            "slots": 100 * sum(r["substituted"] for r in routing) / sum(r["slots"] for r in routing),
            "mass": 100 * sum(r["mass_substituted"] for r in routing) / len(routing),
            "worst_slots": 100 * max(r["worst_request_slots"] for r in routing),
            "worst_mass": 100 * max(r["worst_request_mass"] for r in routing),
            "hit": 100 * hits / lookups,
            "hit_before": 100 * sum(r["routing"]["hit_ratio_before"] * r["experts"]["lookups"]
                                    for r in results) / lookups,
            "issued_top": ratio("top_score"),
            "issued_active": ratio("active"),
            "forward": sum(r["prefetch"]["predictions"]["resident_forward"] for r in results) /
                       max(1, sum(sum(r["prefetch"]["predictions"].values()) for r in results)),
            "tpot": sum(r["tpot_ms"]["mean"] for r in results) / len(results),
        }


def sweep(e):
    """{(model, batch, budget): [(alpha, point)]}, complete settings only."""
    out = {}
    for batch in BATCHES:
        for budget in BUDGETS:
            for model in e.models:
                fine = batch == 1 and budget == BUDGETS[0] and model == list(e.models)[0]
                points = [(a, e.point(model, batch, budget, a))
                          for a in (ALPHAS if fine else COARSE)]
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
        # The displaced weight is clearly worse: that needs no more tokens.
        sizes = [e.args.limit * (1 if "displaced" in keys else times) for _, times in COMPARED]
        points = [(a, e.point(model, 1, "25%", a, keys, n)) for (a, _), n in zip(COMPARED, sizes)]
        rule = e.point(model, 1, "25%", COMPARED[-1][0], "", sizes[-1])
        if not rule or not all(p for _, p in points):
            return None, None
        rows.append([label] + [f"{experiment.signed(p['loss'])} ({p['slots']:.1f})"
                               for _, p in points])
        rows[-1].append("" if not keys else experiment.signed(
            experiment.loss_percent(rule["nll"], points[-1][1]["nll"])))
        lines.append(plot.Line(label, [(p["slots"], p["loss"].mean) for _, p in points],
                               errors=[p["loss"].error for _, p in points], color=i,
                               dash=1 if "displaced" in keys else 0))
    return rows, plot.Panel(f"{model}, batch 1, budget 25 %", "slots replaced, %",
                            "perplexity over exact routing, %", lines)


def batch_table(e, models):
    """Several sequences side by side, by domain; None if a run is missing."""
    rows = []
    for model in models:
        for batch in BATCHES[1:]:
            rule = None
            for label, keys in CHOICES:
                if "displaced" in keys:
                    continue
                p = e.point(model, batch, "25%", 0.6, keys, BATCHED * e.args.limit)
                if p is None:
                    return None
                rule = rule or p
                over = "" if not keys else experiment.signed(
                    experiment.loss_percent(rule["nll"], p["nll"]))
                rows.append([f"{model}, batch {batch}: {label}", experiment.signed(p["loss"]),
                             *(f"{d.mean:+.2f}" for d in p["by_domain"]), f"{p['slots']:.1f}", over])
    return experiment.table(["alpha 0.6, budget 25 %", "loss, %", *DOMAINS, "slots, %",
                             "over the rule, %"], rows)


def replace_batches(e, models):
    """Stores that table alone."""
    report.store_tables("importance-quality", {"Several sequences": batch_table(e, models)})


def held_out(e):
    """The default on tokens that it was not chosen on."""
    first, limit, rows = e.args.limit, HELD_OUT * e.args.limit, []
    for model in sorted(e.models):
        for batch in BATCHES:
            for budget in BUDGETS:
                base, other, routing = [], [], []
                for domain in DOMAINS:
                    base += e.run(model, domain, 1, BUDGETS[0], 0, "", limit, first)["window_nll"]
                    result = e.run(model, domain, batch, budget, DEFAULT, "", limit, first)
                    other += result["window_nll"]
                    routing.append(result["routing"])
                slots = 100 * sum(r["substituted"] for r in routing) / sum(r["slots"] for r in routing)
                rows.append([f"{model}, batch {batch}, {budget}",
                             f"{experiment.signed(experiment.loss_percent(base, other))} ({slots:.1f})"])
    return experiment.table(["loss, % (slots replaced, %)", f"alpha {DEFAULT:g}"], rows)


def setting_panels(e, sweeps):
    panels = []
    for model in e.models:
        for budget in BUDGETS:
            lines = []
            for i, batch in enumerate(BATCHES):
                points = sweeps[model, batch, budget]
                lines.append(plot.Line(f"batch {batch}", [(a, p["loss"].mean) for a, p in points],
                                       errors=[p["loss"].error for _, p in points], color=i))
            panels.append(plot.Panel(f"{model}, budget {budget}", "alpha",
                                     "perplexity over exact routing, %", lines,
                                     rules=[(BOUND, "0.5 %")], y_range=(-0.6, 2.2)))
    for budget in BUDGETS:
        lines = []
        for i, model in enumerate(e.models):
            for j, batch in enumerate((1, 8)):
                points = sweeps[model, batch, budget]
                lines.append(plot.Line(f"{model}, batch {batch}", [(a, p["slots"]) for a, p in points],
                                       color=3 + i, dash=j, markers=False))
        panels.append(plot.Panel(f"substituted, budget {budget}", "alpha", "slots, %", lines))
    return panels


def alpha_table(e, sweeps):
    rows = []
    for (model, batch, budget), points in sorted(sweeps.items()):
        by_alpha = dict(points)
        row = [f"{model}, batch {batch}, {budget}"]
        for alpha in COARSE[1:]:
            p = by_alpha[alpha]
            row.append(f"{experiment.signed(p['loss'])} ({p['slots']:.1f})")
        row.append(f"{largest_within(points, BOUND):g}")
        row.append(f"{largest_within(points, BOUND, errors=1):g}")
        rows.append(row)
    head = (["loss, % (slots replaced, %)"] + [f"alpha {a:g}" for a in COARSE[1:]] +
            ["largest within 0.5 %", "... with 1 s.e."])
    return experiment.table(head, rows)


def fine_table(e, sweeps):
    model = list(e.models)[0]
    rows = []
    for alpha, p in sweeps[model, 1, "25%"]:
        rows.append([f"{alpha:g}", experiment.signed(p["loss"]),
                     *(f"{d.mean:+.2f}" for d in p["by_domain"]), f"{p['slots']:.1f}",
                     f"{p['mass']:.1f}", f"{p['worst_slots']:.0f}", f"{p['hit_before']:.1f}",
                     f"{p['hit']:.1f}", f"{p['tpot']:.2f}"])
    return experiment.table(["alpha", "loss, %"] + DOMAINS +
                            ["slots, %", "mass, %", "worst request's slots, %", "hits before, %", "after, %", "step, ms"], rows)


def prefetch_table(sweeps):
    """At alpha 0.3: of the prefetches, the share that was top-score and active in the true routing; predictions
    through the host's next attention; hits of exact routing, and before and after substitution; times."""
    rows = []
    for (model, batch, budget), points in sorted(sweeps.items()):
        zero, third = dict(points)[0], dict(points)[0.3]
        rows.append([f"{model}, batch {batch}, {budget}", f"{100 * third['issued_top']:.1f}",
                     f"{100 * third['issued_active']:.1f}", f"{100 * third['forward']:.0f}",
                     f"{zero['hit']:.1f}", f"{third['hit_before']:.1f}, {third['hit']:.1f}",
                     f"{zero['tpot']:.2f}", f"{third['tpot']:.2f}",
                     f"{100 * (third['tpot'] / zero['tpot'] - 1):+.0f}"])
    return experiment.table(["", "top-score, %", "active, %", "resident-forward, %", "hits at 0, %",
                             "at 0.3: before, after, %", "step at 0, ms", "at 0.3, ms", "%"], rows)


def write(e, sweeps, comparisons):
    safe = min(largest_within(points, BOUND) for points in sweeps.values())
    print(f"largest alpha within {BOUND} % in every setting: {safe:g}")
    rows, panels = [], []
    for model, (found, panel) in comparisons.items():
        if found is not None:
            panels.append(panel)
            rows += [[f"{model}: {row[0]}"] + row[1:] for row in found]
    parts = {"Loss by alpha": alpha_table(e, sweeps), "Loss by alpha 2": fine_table(e, sweeps),
             "Weights of substitutes": experiment.table(
                 [""] + [f"alpha {x:g}" for x, _ in COMPARED] + ["alpha 0.6: over the rule, %"], rows),
             "Several sequences": batch_table(e, list(e.models)) or "",
             "Prefetch precision and time": prefetch_table(sweeps)}
    report.store_tables("importance-quality", parts)
    plot.save(report.image("quality-importance"), setting_panels(e, sweeps), columns=2)
    plot.save(report.image("quality-importance-weights"), panels, columns=2, panel_width=380)
    report.write("importance", parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--moert-run", default="build/dev/bin/moert-run")
    parser.add_argument("--tokens", default="tests/data/eval")
    parser.add_argument("--limit", type=int, default=1024, help="tokens of each domain")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--link-gbps", type=float, default=0.05)
    parser.add_argument("--runs", default="build/quality-importance.jsonl")
    parser.add_argument("--render", action="store_true", help="runs nothing")
    parser.add_argument("--only-batches", action="store_true",
                        help="only the table of substitutes at several sequences")
    parser.add_argument("--held-out", action="store_true",
                        help="only the default, on the tokens behind those that it was chosen on")
    e = Experiment(parser.parse_args())
    if e.args.held_out:
        report.store_tables("importance-quality", {"Held out": held_out(e)})
        return
    if e.args.only_batches:
        return replace_batches(e, list(e.models))
    sweeps = sweep(e)
    comparisons = {model: compare(e, model) for model in e.models}
    write(e, sweeps, comparisons)


if __name__ == "__main__":
    main()
