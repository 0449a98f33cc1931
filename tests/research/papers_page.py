"""The tables of docs/results/papers.md: four papers' headlines, and ours like for like, from docs/results/data."""
import math
import statistics

import digest
import experiment
import grouped_core as core
import h200_page as h200
import offload_h200 as offload
import quality_dynaexq as dynaexq
import quality_dynaexq_page as equal_page
import quality_lib as lib
import served_h200 as served

MODELS = ("tiny-moe", "small-moe")


def span(values, form="{:.2f}"):
    return f"{form.format(min(values))} to {form.format(max(values))}"


# MxMoE

def plan_gains():
    """Perplexity of plans over uniform schemes at 2.25 bits, percent, by quantizer."""
    entries = digest.data("quality-plans")
    return [100 * (math.exp(lib.difference(*(lib.pooled(entries[f"2.25 {kind} {how}"]["nll"])
                                             for kind in ("plan", "uniform")))[0]) - 1)
            for how in ("gptq", "gptq hadamard", "hqq", "hqq hadamard")]


def plan_speeds(tokens, scheme):
    """Times as fast as a uniform scheme in the same run, of every plan."""
    found = []
    for name, base in (("q30-plans", "q30-plans"), ("q30-plan-5-a8", "q30-plans"), ("q30-plans2", "q30-plans2")):
        of = lambda run: {(r["scheme"], r["tokens"]): r["gemms_us"]["median"] for r in core.load()["runs"][run]["results"]}
        uniform = of(base)[scheme, tokens]
        found += [uniform / us for (s, t), us in of(name).items() if s.startswith("plan") and t == tokens]
    return found


def over(values):
    return span([100 * (v - 1) for v in values], "{:+.0f} %")


# DynaExq

def recovered(model, pair, share, *methods):
    cell, lo, hi = equal_page.of_cell(digest.data("quality-dynaexq")["equal"][model], pair, share)
    return [equal_page.recovered(lo, hi, cell[m]["nll"]).mean for m in methods]


def gaps():
    return [recovered(m, pair, share, "dynaexq")[0] for m in MODELS for pair, share in dynaexq.cells()]


def over_expertflow():
    """Times as fast as `dynaexq` takes a step at batch 32."""
    of = {v["strategy"]: v["step_mean_ms"] for g in digest.data(offload.RUNS["batch-32"][0])["groups"] for v in g["variants"]}
    return of[offload.EXPERTFLOW] / of[offload.DYNAEXQ]


# Fate

def recalls():
    """{model: mean of the row} of the replays."""
    rows = digest.data("fate-replay")["tables"]["cross-layer"]["rows"]
    return {(r[0], r[1]): r[-1].strip("*") for r in rows}


def cross_layer():
    of = recalls()
    names = [("cosine of adjacent gate inputs", "cosine of adjacent gate inputs"), ("top-k overlap", "overlap of the top k"),
             ("recall, 75th percentile", "recall of the 75th percentile")]
    return experiment.table(["", "paper", *MODELS], [
        [text, paper, *(of[m, key] for m in MODELS)] for (key, text), paper in zip(names, ("0.888", "0.788", "0.9715"))])


def window(rival, mode="window"):
    runs = served.load()
    return [run["cells"][f"{b} {rival}"][0] / run["cells"][f"{b} fate"][0] for name, run in runs.items()
            if name.endswith(f" {mode}") for b in ("25%", "50%", "90%")]


def window_table():
    rivals = ("load-on-demand", "on-demand", "on-demand+importance.residency", "activation-path+fate.residency")
    rows = []
    for name, run in served.load().items():
        if name.startswith("qwen3") and name.endswith(" window"):
            rows += [[f"`{r}`", *(f"{run['cells'][f'{b} {r}'][0] / run['cells'][f'{b} fate'][0]:.2f}"
                                                      for b in ("25%", "50%", "90%"))] for r in rivals]
    return experiment.table(["time over that of `fate`", "25 %", "50 %", "90 %"], rows)


def served_table():
    rows = []
    for name, run in served.load().items():
        if name.startswith("qwen3") and name.endswith(" graph"):
            for s in served.STRATEGIES:
                cells = [run["cells"][f"{b} {s}"] for b in ("25%", "50%", "90%")]
                rows.append([f"`{s}`", *(f"{m:.2f} ({lo:.2f} to {hi:.2f}); {100 * hits:.0f} %"
                                                             for m, lo, hi, hits in cells)])
    return experiment.table(["ms a step; hits", "25 %", "50 %", "90 %"], rows)


# Importance

def against_rivals(strategy):
    """{batch: mean change of the time of a step against the best of our own rivals, percent}."""
    found = {}
    for _, _, batch, known in h200.importance_groups(h200.load("importance")):
        if strategy in known and h200.OURS in known:
            best = min(known[r]["step_mean_ms"] for r in h200.IMPORTANCE_RIVALS if r in known)
            found.setdefault(batch, []).append(100 * (known[strategy]["step_mean_ms"] / best - 1))
    return {b: statistics.mean(v) for b, v in found.items()}


def more_hits():
    groups = [k for *_, k in h200.importance_groups(h200.load("importance")) if h200.OURS in k]
    return [100 * (k[h200.OURS]["hit_ratio"] / max(k[r]["hit_ratio"] for r in h200.IMPORTANCE_RIVALS if r in k) - 1) for k in groups]


def alpha():
    """Loss of perplexity at the default and at the paper's alpha."""
    t = digest.data("importance-quality")["tables"]
    columns = t["Loss by alpha"]["columns"]
    at = [columns.index(f"alpha {a}") for a in ("0.1", "0.3")]
    held = {r[0]: r[1] for r in t["Held out"]["rows"]}
    rows = [[r[0], *(r[i] for i in at), held[r[0]]] for r in t["Loss by alpha"]["rows"]
            if "25%" in r[0] and "batch 3" not in r[0]]
    return experiment.table(["loss, % (slots replaced, %)", "alpha 0.1", "alpha 0.3", "alpha 0.1, held out"], rows)



def headlines():
    of, default, paper = recalls(), against_rivals("importance"), against_rivals(h200.OURS)
    both = lambda d: ", ".join(f"{d[b]:+.0f} %" for b in (3, 1))
    recall = ", ".join(f"{100 * float(of[m, 'recall, 75th percentile']):.1f} %" for m in MODELS)
    rows = [
        ("MxMoE: perplexity of plans over uniform GPTQ, 2.25 bits", "-17 and -21 % at best", span(plan_gains(), "{:+.1f} %"),
         "missed", "models with 2-bit losses as large as theirs"),
        ("plans over 16 bits, 8,192 tokens", "3 to 3.4 times", f"{span(plan_speeds(8192, 'bf16'))} times", "missed",
         "products of 4-bit activations; ours multiplies them in 8 bits"),
        ("plans over uniform w8a8, 8,192 tokens", "up to +29 %", over(plan_speeds(8192, "w8a8")), "missed",
         "one launch for all packings"),
        ("plans over uniform w4a16, 512 tokens", "up to +25 %", over(plan_speeds(512, "w4a16_g128")), "missed but for one plan", "the same"),
        ("DynaExq: share of the gap recovered", "31 to 89 %, benchmark accuracy", span(gaps(), "{:.0f} %") + ", perplexity of two small models",
         "reached, on toys", "a large trained model"),
        ("batch 32 over ExpertFlow 2510", "2.73 times", f"{over_expertflow():.1f} times, with its rules over our store", "reached",
         "its own program"),
        ("Fate: recall of the next gate", "97.15 %", recall, "reached on one", "-"),
        ("hit ratio", "99.08 %", "99.3 and 99.2 % at 75 % of the experts, replayed", "on that condition", "-"),
        ("decode over load-on-demand", "4.1 times", f"{span(window('load-on-demand', 'eager-window'), '{:.1f}')} times, both eager",
         "reached at 90 % of the experts", "-"),
        ("decode over activation paths, same cache", "2.2 times", f"{span(window('activation-path+fate.residency'))} times", "missed",
         "a worse co-activation predictor than ours"),
        ("Importance: time of a step, batch 3, 1", "-35 %, -24 %", f"{both(paper)} at alpha 0.3; {both(default)} by default; rivals are our own",
         "batch 1 at alpha 0.3", "real rivals, today's kernels"),
        ("hits over the best rival", "+66 %", span(more_hits(), "{:+.0f} %"), "missed", "rivals that hit 36 %, as theirs seem to; ours hit 77 to 92 %")]
    return experiment.table(["claim", "paper", "here", "verdict", "what it would need"], [list(r) for r in rows])
