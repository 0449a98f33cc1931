#!/usr/bin/env python3
"""Quality of two precisions at equal stored bytes, chosen online or not: docs/dynaexq.md.

    scripts/quality_dynaexq.py --moert-run build/dev/bin/moert-run --moert-pack build/dev/bin/moert-pack \\
        tiny-moe=examples/models/tiny-moe small-moe=DIR

Teacher-forced decode on the virtual clock, so a rerun gives the same page. Runs are kept in --work
and not repeated; --render only writes the page from them.
"""
import argparse
import array
import json
import math
import os
import struct
import subprocess
import sys

import experiment
import plot

DOMAINS = ["wikitext2", "gsm8k", "humaneval"]
SCHEMES = ["bf16", "w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym"]
PAIRS = [("bf16", "w4a16_g128"), ("w8a16_g128", "w2a16_g64_asym"), ("w4a16_g128", "w2a16_g64_asym")]
SHARES = [0.125, 0.25, 0.5]
WINDOW = 256
WARM = 1          # windows that are run and not counted
COUNTED = 4       # windows a domain
LINK_GBPS = 0.08  # an expert in bf16 then takes 0.6 ms, as one of Qwen3-30B-A3B at 16 GB/s
SHIFT_WINDOW = 128
SHIFT_SEGMENT = 512
SHIFTS = 20
METHODS = ["static mixed", "oracle", "dynaexq", "never-stall"]
DEMOTED = [4, 8, 16, 24]
BETA = 0.85  # dynaexq's default


def short(scheme):
    return scheme.split("a16")[0]


class Experiment:
    def __init__(self, args):
        self.args = args
        self.models = dict(m.split("=", 1) for m in args.models)
        os.makedirs(args.work, exist_ok=True)
        self.runs = experiment.Runs(os.path.join(args.work, "runs.jsonl"), not args.render)
        self.tokens = {}
        for domain in DOMAINS:
            words = array.array("H")
            with open(os.path.join(args.tokens, f"{domain}.tokens.u16"), "rb") as f:
                words.frombytes(f.read())
            self.tokens[domain] = words
        self.experts, self.top_k = {}, {}
        for model, path in self.models.items():
            with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
                config = json.load(f)
            self.experts[model] = config["num_experts"]
        self.hot_cache = {}

    def stream(self, name, words):
        path = os.path.join(self.args.work, f"{name}.u16")
        if not os.path.exists(path):
            with open(path, "wb") as f:
                f.write(array.array("H", words).tobytes())
        return path

    def evaluated(self, domain):
        """The tokens a domain is judged by, from its beginning."""
        return self.stream(domain, self.tokens[domain][:(WARM + COUNTED) * WINDOW])

    def offline(self):
        """What a static choice may learn from: as much of each domain, none of it judged."""
        words = array.array("H")
        for domain in DOMAINS:
            words += self.tokens[domain][16384:16384 + 4 * WINDOW]
        return self.stream("offline", words)

    def shifting(self):
        words = array.array("H")
        for i in range(SHIFTS + 1):
            domain, turn = DOMAINS[i % 3], i // 3
            words += self.tokens[domain][turn * SHIFT_SEGMENT:(turn + 1) * SHIFT_SEGMENT]
        return self.stream("shifting", words)

    def pack(self, model):
        path = os.path.join(self.args.work, f"{model}.pack")
        if not os.path.exists(path) and not self.args.render:
            subprocess.run([self.args.moert_pack, "quantize", "--model", self.models[model], "--out",
                            path, "--schemes", ",".join(SCHEMES), "--method", "hqq"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return path

    def command(self, model, tokens, strategy, budget="100%", window=WINDOW):
        return [self.args.moert_run, "ppl", "--model", self.models[model], "--experts",
                self.pack(model), "--tokens", tokens, "--window", str(window), "--step-tokens", "1",
                "--batch", "1", "--backend", "cpu", "--threads", "1", "--clock", "virtual",
                "--link-gbps", f"{LINK_GBPS:g}", "--budget", str(budget), "--strategy", strategy,
                "--json", "-", "--quiet"]

    def run(self, model, tokens, strategy, budget="100%", window=WINDOW):
        key = [model, os.path.basename(tokens), strategy, str(budget), window]
        return self.runs.get(self.command(model, tokens, strategy, budget, window), key)

    def counts(self, model, tokens):
        """Selections of every expert by layer, from a routing trace of the best scheme."""
        name = os.path.basename(tokens).split(".")[0]
        path = os.path.join(self.args.work, f"counts-{model}-{name}.json")
        if not os.path.exists(path):
            trace = os.path.join(self.args.work, "routing.trace")
            subprocess.run(self.command(model, tokens, "resident:scheme=bf16") + ["--trace", trace],
                           check=True, stdout=subprocess.DEVNULL)
            with open(path, "w", encoding="utf-8") as f:
                json.dump(count_selections(trace, self.experts[model]), f)
        with open(path, encoding="utf-8") as f:
            return json.load(f)

    def hot(self, model, tokens, share, coldest=False):
        """The set of the experts a stream selects most (least), as strategies take it."""
        n = int(share * self.experts[model] + 1e-9)
        return hot_text(hottest(self.counts(model, tokens), n, coldest))


def count_selections(path, experts):
    with open(path, "rb") as f:
        data = f.read()
    if data[:8] != b"moerttrc":
        sys.exit(f"{path} is no routing trace")
    at = 16 + struct.unpack_from("<I", data, 12)[0]
    counts, last_step = [], None
    while at < len(data):
        size, phase, flags, layer, tokens = struct.unpack_from("<QBBHI", data, at)
        step = struct.unpack_from("<q", data, at + 16)[0]
        ids_at = at + 72 + (8 * tokens if flags & 4 else 0)
        per_token = (size - (ids_at - at)) // tokens
        scores = (1 if flags & 1 else 0) + (1 if flags & 2 else 0)
        k = (per_token - scores * 2 * experts) // 4
        while len(counts) <= layer:
            counts.append([0] * experts)
        # The first windows warm up: they are not what a hindsight choice is judged by.
        if step >= WARM * WINDOW or "shifting" in path or "offline" in path:
            for e in struct.unpack_from(f"<{tokens * k}H", data, ids_at):
                counts[layer][e] += 1
        at += size
    return counts


def hottest(counts, n, coldest=False):
    sign = 1 if coldest else -1
    return [sorted(range(len(layer)), key=lambda e: (sign * layer[e], e))[:n] for layer in counts]


def hot_text(sets):
    return "/".join("-".join(map(str, sorted(layer))) for layer in sets)


def judged(result):
    return result["window_nll"][WARM:]


def gap_recovered(lo, hi, other):
    """Share of the nll between lo and hi that `other` recovers; lists over the same windows. The
    error is of the numerator, from paired differences."""
    gap = sum(lo) - sum(hi)
    diff = experiment.mean_of([l - o for l, o in zip(lo, other)])
    scale = 100 * len(lo) / gap
    return experiment.Mean(diff.mean * scale, diff.error * scale, len(lo))


def equal_bytes(e, model, shares):
    """Uniform schemes and every (pair, share) with its methods: nll of the judged windows of all
    domains, stored bytes. None if a run is missing."""
    streams = {d: e.evaluated(d) for d in DOMAINS}
    uniform, cells = {}, {}
    for scheme in SCHEMES:
        results = [e.run(model, streams[d], f"resident:scheme={scheme}") for d in DOMAINS]
        if not all(results):
            return None
        uniform[scheme] = {"nll": [judged(r) for r in results], "bytes": results[0]["pool_bytes"]}
    for hi, lo in PAIRS:
        for share in shares:
            keys = f"hi={hi},lo={lo},hi_fraction={share}"
            cell = {}
            for method in METHODS:
                results = []
                for d in DOMAINS:
                    budget = "100%"
                    if method == "static mixed":
                        spec = f"static-mixed:{keys},hot={e.hot(model, e.offline(), share)}"
                    elif method == "oracle":
                        spec = f"static-mixed:{keys},hot={e.hot(model, streams[d], share)}"
                    elif method == "dynaexq":
                        spec = f"dynaexq:{keys}"
                    else:
                        # 100% is the fixed parts and every expert in hi; replace the latter by the
                        # bytes that dynaexq holds.
                        same = cell["dynaexq"]["runs"][0]
                        budget = same["budget_bytes"] - uniform[hi]["bytes"] + same["pool_bytes"]
                        spec = f"never-stall:hi={hi},lo={lo}"
                    results.append(e.run(model, streams[d], spec, budget))
                if not all(results):
                    return None
                cell[method] = {"nll": [judged(r) for r in results], "runs": results,
                                "bytes": results[0]["pool_bytes"]}
            cells[(hi, lo), share] = cell
    return {"uniform": uniform, "cells": cells}


def demotions(e, model):
    """Perplexity over the high scheme by how many experts of each layer are low, coldest first and
    hottest first."""
    hi, lo = PAIRS[1]
    streams = {d: e.evaluated(d) for d in DOMAINS}
    base = sum((judged(e.run(model, streams[d], f"resident:scheme={hi}")) for d in DOMAINS), [])
    lines = []
    n = e.experts[model]
    for name, keep_coldest in (("coldest first", False), ("hottest first", True)):
        points, errors = [(0, 0)], [0]
        for low in DEMOTED:
            share = (n - low) / n
            nll = []
            for d in DOMAINS:
                hot = e.hot(model, streams[d], share, keep_coldest)
                spec = f"static-mixed:hi={hi},lo={lo},hi_fraction={share},hot={hot}"
                result = e.run(model, streams[d], spec)
                if result is None:
                    return None
                nll += judged(result)
            loss = experiment.loss_percent(base, nll)
            points.append((low, loss.mean))
            errors.append(loss.error)
        low_all = sum((judged(e.run(model, streams[d], f"resident:scheme={lo}"))
                       for d in DOMAINS), [])
        loss = experiment.loss_percent(base, low_all)
        lines.append(plot.Line(name, points + [(n, loss.mean)], errors=errors + [loss.error]))
    return lines


def transitions(e, model):
    """Moves an interval and perplexity, with and without hysteresis."""
    hi, lo = PAIRS[1]
    stream = e.evaluated("gsm8k")
    rows = []
    for name, interval in (("stationary (200 ms, 50 tokens)", 200), ("noisy (20 ms, 5 tokens)", 20)):
        results = []
        for hysteresis in ("", ",margin=0,noise=0,slack=0", ",noise=2"):
            spec = f"dynaexq:hi={hi},lo={lo},hi_fraction=0.25,interval_ms={interval}{hysteresis}"
            results.append(e.run(model, stream, spec))
        if not all(results):
            return None
        steps = (WARM + COUNTED) * WINDOW
        for label, r in zip(("with", "without", "noise=2"), results):
            moves = r["precision"]["promotions"] + r["precision"]["demotions"]
            intervals = steps * r["tpot_ms"]["mean"] / interval
            rows.append({"trace": name, "hysteresis": label, "moves": moves / intervals,
                         "nll": judged(r)})
    return rows


def high_sets(e, path, model, hi_bytes, share):
    """High set of every layer at the end of every step, from the timeline of a dynaexq run."""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)
    events = events["traceEvents"] if isinstance(events, dict) else events
    steps = sorted(ev["ts"] + ev["dur"] for ev in events if ev.get("name") == "decode")
    moves = sorted((ev["ts"] + ev["dur"], ev["args"]["layer"], ev["args"]["expert"],
                    ev["args"]["bytes"] == hi_bytes)
                   for ev in events if ev.get("name", "").startswith("background"))
    n = int(share * e.experts[model])
    layers = 1 + max(m[1] for m in moves)
    high = [set(range(n)) for _ in range(layers)]
    out, at = [], 0
    for end in steps:
        while at < len(moves) and moves[at][0] <= end:
            _, layer, expert, promoted = moves[at]
            (high[layer].add if promoted else high[layer].discard)(expert)
            at += 1
        out.append([frozenset(layer) for layer in high])
    return out


def shift(e, model):
    """What happens after a change of domain: overlap of the high set with the domain's own by tokens
    since the change, and perplexity by window."""
    hi, lo = PAIRS[1]
    share = 0.25
    stream = e.shifting()
    keys = f"hi={hi},lo={lo},hi_fraction={share}"
    specs = {"static low": f"resident:scheme={lo}", "static high": f"resident:scheme={hi}",
             "static mixed, offline": f"static-mixed:{keys},hot={e.hot(model, e.offline(), share)}",
             "static mixed, first domain":
                 f"static-mixed:{keys},hot={e.hot(model, e.evaluated(DOMAINS[0]), share)}",
             "dynaexq": f"dynaexq:{keys}"}
    results = {}
    for name, spec in specs.items():
        results[name] = e.run(model, stream, spec, window=SHIFT_WINDOW)
        if results[name] is None:
            return None
    saved = os.path.join(e.args.work, f"shift-{model}.json")
    if not os.path.exists(saved):
        trace = os.path.join(e.args.work, "shifting.trace")
        subprocess.run(e.command(model, stream, specs["dynaexq"], window=SHIFT_WINDOW) +
                       ["--trace", trace], check=True, stdout=subprocess.DEVNULL)
        hi_bytes = max(b for b in background_bytes(trace + ".perfetto.json"))
        sets = high_sets(e, trace + ".perfetto.json", model, hi_bytes, share)
        own = {}
        for d, domain in enumerate(DOMAINS):
            tail = [sets[i] for i in range(len(sets))
                    if i // SHIFT_SEGMENT % 3 == d and i % SHIFT_SEGMENT >= SHIFT_SEGMENT // 2]
            own[domain] = steady(tail, int(share * e.experts[model]))
        overlap = [sum(len(high & own[DOMAINS[i // SHIFT_SEGMENT % 3]][layer]) / len(high or {0})
                       for layer, high in enumerate(now)) / len(now)
                   for i, now in enumerate(sets)]
        with open(saved, "w", encoding="utf-8") as f:
            json.dump(overlap, f)
    with open(saved, encoding="utf-8") as f:
        return results, json.load(f)


def background_bytes(path):
    with open(path, encoding="utf-8") as f:
        events = json.load(f)
    events = events["traceEvents"] if isinstance(events, dict) else events
    return {ev["args"]["bytes"] for ev in events if ev.get("name", "").startswith("background")}


def steady(sets, n):
    """The n experts of each layer that are high most of the time."""
    out = []
    for layer in range(len(sets[0])):
        times = {}
        for now in sets:
            for expert in now[layer]:
                times[expert] = times.get(expert, 0) + 1
        out.append(set(sorted(times, key=lambda x: (-times[x], x))[:n]))
    return out


def measure(e):
    first = list(e.models)[0]
    found = {"equal": {}}
    found["equal"][first] = equal_bytes(e, first, SHARES)
    found["transitions"] = transitions(e, first)
    found["shift"] = shift(e, first)
    found["demotions"] = demotions(e, first)
    for model in list(e.models)[1:]:
        found["equal"][model] = equal_bytes(e, model, [0.25])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--moert-run", default="build/dev/bin/moert-run")
    parser.add_argument("--moert-pack", default="build/dev/bin/moert-pack")
    parser.add_argument("--tokens", default="tests/data/eval")
    parser.add_argument("--work", default="build/quality-dynaexq")
    parser.add_argument("--render", action="store_true", help="runs nothing")
    parser.add_argument("--page", default="docs/dynaexq.md")
    e = Experiment(parser.parse_args())
    write(e, measure(e))


def flat(windows):
    return sum(windows, [])


def pair_name(pair):
    return f"({short(pair[0])}, {short(pair[1])})"


def mib(size):
    return f"{size / 2**20:.2f}"


def equal_table(cells, uniform):
    rows = []
    for (pair, share), cell in cells.items():
        lo, hi = flat(uniform[pair[1]]["nll"]), flat(uniform[pair[0]]["nll"])
        recovered = {m: gap_recovered(lo, hi, flat(cell[m]["nll"])) for m in METHODS}
        gain = {m: sum(lo) - sum(flat(cell[m]["nll"])) for m in METHODS}
        size = cell["dynaexq"]["bytes"]
        fits = [x for x in SCHEMES if uniform[x]["bytes"] <= size]
        best = max(fits, key=lambda x: uniform[x]["bytes"])
        same = gap_recovered(lo, hi, flat(uniform[best]["nll"]))
        low = cell["never-stall"]["runs"]
        answered = 100 * sum(r["experts"]["low_answers"] for r in low) / sum(
            r["experts"]["lookups"] for r in low)
        rows.append([pair_name(pair), f"{100 * share:g} %", mib(size)] +
                    [f"{recovered[m].mean:.0f} ± {recovered[m].error:.0f}" for m in METHODS] +
                    [f"{100 * gain['dynaexq'] / gain['oracle']:.0f}",
                     f"{short(best)} {mib(uniform[best]['bytes'])}: {same.mean:.0f}", f"{answered:.0f}"])
    return experiment.table(["hi, lo", "n_hi", "MiB"] + METHODS +
                            ["dynaexq, % of oracle's gain", "uniform that fits, MiB: %",
                             "never-stall: lookups low, %"], rows)


def uniform_table(uniform):
    return experiment.table(["scheme", "MiB", "perplexity"],
                            [[x, mib(u["bytes"]),
                              f"{math.exp(sum(flat(u['nll'])) / len(flat(u['nll']))):.3f}"]
                             for x, u in uniform.items()])


def by_position(nll):
    """nll by window since the last change, over all changes: the first segment is no shift."""
    per = SHIFT_SEGMENT // SHIFT_WINDOW
    return [[nll[s * per + i] for s in range(1, SHIFTS + 1)] for i in range(per)]


def shift_panels(results, overlap):
    per = SHIFT_SEGMENT // SHIFT_WINDOW
    high = by_position(results["static high"]["window_nll"])
    lines = []
    for i, name in enumerate(("static low", "static mixed, first domain", "static mixed, offline",
                              "dynaexq")):
        mine = by_position(results[name]["window_nll"])
        losses = [experiment.loss_percent(h, m) for h, m in zip(high, mine)]
        lines.append(plot.Line(name, [((i + 0.5) * SHIFT_WINDOW, x.mean)
                                      for i, x in enumerate(losses)],
                               errors=[x.error for x in losses], color=i))
    quality = plot.Panel("perplexity after a shift, mean of 20", "tokens since the shift",
                         "over static high, %", lines)
    step = 16
    means, spreads = [], []
    for at in range(0, SHIFT_SEGMENT, step):
        values = [overlap[s * SHIFT_SEGMENT + at] for s in range(1, SHIFTS + 1)]
        m = experiment.mean_of(values)
        means.append((at, 100 * m.mean))
        spreads.append(100 * m.error * math.sqrt(m.n))
    recovery = plot.Panel("high set after a shift, mean and spread of 20", "tokens since the shift",
                          "overlap with steady state, %",
                          [plot.Line("overlap", means, errors=spreads, color=3)], y_range=(0, 100))
    trail = plot.Panel("perplexity along the stream", "tokens", "over static high, %", [
        plot.Line(name, [((i + 0.5) * SHIFT_SEGMENT, 100 * (math.exp(
            sum(results[name]["window_nll"][i * per:(i + 1) * per]) / per -
            sum(results["static high"]["window_nll"][i * per:(i + 1) * per]) / per) - 1))
            for i in range(SHIFTS + 1)], color=c)
        for c, name in ((1, "static mixed, first domain"), (2, "static mixed, offline"),
                        (3, "dynaexq"))])
    return [recovery, quality, trail], means, spreads


def write(e, found):
    first = list(e.models)[0]
    tokens = len(DOMAINS) * COUNTED * (WINDOW - 1)
    parts = [f"""# Two precisions at equal bytes: dynaexq and never-stall

<!-- written by scripts/quality_dynaexq.py -->

Every expert is resident in a low version; what the budget leaves buys high versions of some. Who gets them decides the quality:
nobody (static low), a fixed set by offline frequency (static mixed), the set that the very stream turns out to use most (oracle: known
only in hindsight, the bound of fixed sets), the online choice (dynaexq), or a cache (never-stall).

Teacher-forced decode, one token a step, virtual clock (profile `reference`: 4 ms a step of tiny-moe, so 50 tokens in an interval of 200 ms), link {LINK_GBPS:g} GB/s: a bf16 expert
of tiny-moe takes 0.6 ms, as one of Qwen3-30B-A3B at 16 GB/s. Packs by HQQ. The first {COUNTED} windows of {WINDOW} tokens of each of {", ".join(DOMAINS)} after
{WARM * WINDOW} tokens of warm-up that are not counted: {tokens:,} scored tokens a cell, paired by window; ± one standard error. The offline
frequencies come from other tokens of the three domains in equal parts. Reproducible to the bit.

    scripts/quality_dynaexq.py tiny-moe=examples/models/tiny-moe small-moe=DIR

## Quality at equal stored bytes

Share of the nll between static low and static high that is recovered, percent. MiB: blocks held by dynaexq, its 4 spare blocks of each size
included; never-stall gets the same bytes (it keeps the low version of a high expert, so it holds fewer high ones), the static sets need none. No method waited a
single time (stall 0 in every run of dynaexq, never-stall and the static sets)."""]
    stalls = [r["stall_ms"]["total"] for m in found["equal"] if found["equal"][m]
              for c in found["equal"][m]["cells"].values() for k in METHODS for r in c[k]["runs"]]
    if any(stalls):
        raise SystemExit("a run stalled: the page must not say that none did")
    for model, equal in found["equal"].items():
        if equal is None:
            continue
        parts.append(f"### {model}\n\n" + equal_table(equal["cells"], equal["uniform"]) + "\n\n" +
                     uniform_table(equal["uniform"]))
    gains = []
    for equal in found["equal"].values():
        if equal is None:
            continue
        for (pair, share), cell in equal["cells"].items():
            lo = sum(flat(equal["uniform"][pair[1]]["nll"]))
            gains.append((pair, 100 * (lo - sum(flat(cell["dynaexq"]["nll"]))) /
                          (lo - sum(flat(cell["oracle"]["nll"])))))
    wide = [g for pair, g in gains if pair != PAIRS[0]]
    parts.append(f"""Of the oracle's gain dynaexq reaches {min(wide):.0f} to {max(wide):.0f} % ({sum(wide) / len(wide):.0f} % on average) where the gap is wide, the goal being 95 %.
Between bf16 and w4 the whole gap is 1 to 2 % of perplexity, and errors of 20 to 40 points leave nothing to say. The paper recovers 89 % of the gap from INT2 to INT4
on Qwen3-80B, 31 % of that from INT4 to FP16 on Qwen3-30B and 39 % on Phi-3.5-MoE, in average benchmark accuracy; here it is perplexity of small models. A plan by
sensitivity (`moert-pack allocate`) is not among the methods yet.""")
    if found["shift"]:
        results, overlap = found["shift"]
        panels, means, spreads = shift_panels(results, overlap)
        os.makedirs("docs/images", exist_ok=True)
        plot.save("docs/images/dynaexq-shift", panels, columns=2, panel_width=380)
        settled = means[-1][1]
        recovered = next((x for x, y in means if y >= 0.95 * settled), None)
        nll = {n: sum(r["window_nll"]) / len(r["window_nll"]) for n, r in results.items()}
        parts.append(f"""## Shift

{first}, {pair_name(PAIRS[1])}, n_hi 25 %: {SHIFTS} changes wikitext2 -> gsm8k -> humaneval -> wikitext2, every {SHIFT_SEGMENT} tokens. Steady state of a domain: the experts that
are high most of the time in the second half of its segments.

{plot.picture("images/dynaexq-shift", "overlap of the high set with its steady state and perplexity after a shift")}

The overlap falls to {min(y for _, y in means):.0f} % and is back at 95 % of its final {settled:.0f} % (spread {spreads[-1]:.0f}) after {recovered} tokens, {recovered / 50:.1f} intervals; with the default
beta of {BETA} the past's weight falls to a twentieth in {math.log(0.05) / math.log(BETA):.0f} intervals. Perplexity over the whole stream: """ +
                     ", ".join(f"{n} {math.exp(v):.3f}" for n, v in nll.items()) + ".")
    if found["transitions"]:
        rows = [[r["trace"] if r["hysteresis"] == "with" else "", r["hysteresis"], f"{r['moves']:.1f}",
                 f"{math.exp(sum(r['nll']) / len(r['nll'])):.3f}"] for r in found["transitions"]]
        t = found["transitions"]
        parts.append("## Hysteresis\n\nTransitions an interval (promotions and demotions, all layers; gsm8k, "
                     f"{pair_name(PAIRS[1])}, n_hi 25 %), with the defaults and with `margin=0,noise=0`: "
                     f"{t[1]['moves'] / t[0]['moves']:.1f} times fewer on the stationary trace, "
                     f"{t[4]['moves'] / t[3]['moves']:.1f} times on the noisy one "
                     f"(goal: 5 at equal quality; with `noise=2` {t[4]['moves'] / t[5]['moves']:.1f}).\n\n" +
                     experiment.table(["trace", "hysteresis", "transitions an interval", "perplexity"], rows))
    if found["demotions"]:
        plot.save("docs/images/dynaexq-demotion", [plot.Panel(
            f"{first}, {pair_name(PAIRS[1])}", "experts of each layer in the low version",
            "perplexity over static high, %", found["demotions"])], panel_width=460)
        cold, hot = found["demotions"]
        half = next(i for i, (x, _) in enumerate(cold.points) if x == e.experts[first] // 2)
        parts.append(f"""## Demoting experts, coldest or hottest first

Static sets by the selections of the stream itself (paper Fig. 3).

{plot.picture("images/dynaexq-demotion", "perplexity by number of demoted experts, coldest first and hottest first")}

With half of the experts low, {cold.points[half][1]:.1f} % (coldest first) against {hot.points[half][1]:.1f} % (hottest first).""")
    with open(e.args.page, "w", encoding="utf-8") as page:
        page.write("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
