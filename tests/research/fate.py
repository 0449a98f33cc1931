#!/usr/bin/env python3
"""Measures what docs/results/papers.md shows: docs/results/data/fate-replay.json, build/report/fate.md.

    tests/research/fate.py --models DIR [--build build/dev] [--work /tmp/fate] [--only NAME,...] [--rho]

DIR holds tiny-moe, small-moe, eval (token files) and traces (recorded routing). Everything runs on
the virtual clock and is reproducible to the bit; results are kept in --work, so that an
interrupted run goes on. --rho searches the largest share of tokens that prefill may send in the
low version within 1 % of perplexity, of every domain.
"""
import argparse
import hashlib
import json
import math
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import plot  # noqa: E402
import report  # noqa: E402

DOMAINS = ("wikitext2", "gsm8k", "humaneval")
MODELS = ("tiny", "small")
EXPERT = {"tiny": 49152, "small": 196608}   # bytes of one, bf16
LAYER_NS, TOKEN_NS, LATENCY_NS = 500_000, 2_000, 5_000   # of the profile "reference"
BUDGETS = (12.5, 25, 50, 75)
WINDOWS = (0.5, 1, 2, 4, 8)
UNIFORM = "fate.residency:shallow=0,transient=0"
GRID = {   # (predictor, cache): spec
    ("none", "lru"): "on-demand",
    ("none", "arc"): f"on-demand+{UNIFORM}",
    ("none", "arc + dealt"): "on-demand+fate.residency",
    ("activation-path", "lru"): "activation-path",
    ("activation-path", "arc"): f"activation-path+{UNIFORM}",
    ("activation-path", "arc + dealt"): "activation-path+fate.residency",
    ("next gate", "lru"): "on-demand+fate.prefetch",
    ("next gate", "arc"): "fate:shallow=0,transient=0",
    ("next gate", "arc + dealt"): "fate",
}
RIVALS = {"load-on-demand": "load-on-demand", "on-demand": "on-demand",
          "activation-path": "activation-path",
          "activation-path, fate's cache": "activation-path+fate.residency"}


RHO, RHO_TOKENS = 0.1, 8192  # the default, chosen on the first so many tokens of each text


class Lab:
    def __init__(self, options):
        self.bin = os.path.join(options.build, "bin")
        self.tests = os.path.join(options.build, "tests")
        self.models, self.work = options.models, options.work
        os.makedirs(self.work, exist_ok=True)

    def run(self, command, env=None):
        """The JSON object that a command prints, remembered."""
        key = hashlib.sha256(json.dumps([command, env]).encode()).hexdigest()[:20]
        path = os.path.join(self.work, key + ".json")
        if not os.path.exists(path):
            out = subprocess.run(command, capture_output=True, text=True,
                                 env={**os.environ, **(env or {})})
            if out.returncode != 0:
                sys.exit(f"{' '.join(command)}: exit {out.returncode}\n{out.stderr}{out.stdout}")
            line = next(l for l in out.stdout.splitlines() if l.startswith("{"))
            with open(path, "w", encoding="utf-8") as file:
                file.write(line)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def sim(self, trace, strategy, budget, gbps, *more):
        command = [f"{self.bin}/moert-sim", "--trace", trace, "--strategy", strategy, "--budget",
                   f"{budget}%", "--link-gbps", f"{gbps:.6g}", "--json", "-", "--quiet", *more]
        return self.run(command)

    def decode(self, model, domain, strategy, budget, gbps, *more):
        return self.sim(f"{self.models}/traces/{model}-{domain}.safetensors", strategy, budget,
                        gbps, "--model", f"{self.models}/{model}-moe", *more)

    def ppl(self, model, domain, *more):
        tokens = [] if "--tokens" in more else ["--tokens", f"{self.models}/eval/{domain}.tokens.u16"]
        return self.run([f"{self.bin}/moert-run", "ppl", "--model", f"{self.models}/{model}-moe",
                         *tokens, "--clock", "virtual", "--cache", f"{self.work}/cache", "--json", "-", "--quiet",
                         *more])

    def pack(self, model, schemes="w4a16_g128,w2a16_g64_asym"):
        path = f"{self.work}/{model}-{schemes.replace(',', '-')}"
        if not os.path.exists(f"{path}/moert.json"):
            subprocess.run([f"{self.bin}/moert-pack", "quantize", "--model",
                            f"{self.models}/{model}-moe", "--out", path, "--schemes", schemes,
                            "--method", "hqq"], check=True, capture_output=True)
        return path

    def trace(self, name, command):
        """A trace file, recorded once."""
        path = f"{self.work}/{name}.trace"
        if not os.path.exists(path):
            subprocess.run(command + [path + ".part"], check=True, capture_output=True)
            os.rename(path + ".part", path)
        return path


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def link_of(model, window, layer_ns=LAYER_NS):
    """GB/s at which `window` transfers of a bf16 expert fit a layer."""
    return EXPERT[model] / (layer_ns / window - LATENCY_NS)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


# Every part returns {name of a table: its text} and writes its charts.


def cross_layer(lab):
    panels, rows = [], []
    for model in MODELS:
        runs = lab.run([f"{lab.tests}/parity.cross_layer_test"],
                       {"MOERT_CROSS_LAYER_MODEL": f"{lab.models}/{model}-moe"})
        layers = len(runs["gsm8k"]["cosine"])
        lines = []
        for i, (key, name) in enumerate((("cosine", "cosine of adjacent gate inputs"),
                                         ("top_k", "top-k overlap"),
                                         ("quarter", "recall, 75th percentile"))):
            values = [[runs[d][key][l] for d in DOMAINS] for l in range(1, layers)]
            lines.append(plot.Line(name, [(l + 1, mean(v)) for l, v in enumerate(values)],
                                   errors=[(max(v) - min(v)) / 2 for v in values], color=i))
            by_domain = [mean(runs[d][key][1:]) for d in DOMAINS]
            rows.append([f"{model}-moe", name, *(f"{v:.3f}" for v in by_domain),
                         f"**{mean(by_domain):.3f}**"])
        panels.append(plot.Panel(f"{model}-moe", "predicted layer", "share", lines,
                                 y_range=(0.6, 1.0), x_range=(0.8, layers - 0.8),
                                 rules=[(0.888, "paper: cosine"), (0.788, "paper: overlap"),
                                        (0.9715, "paper: recall")]))
    plot.save(report.image("fate-cross-layer"), panels)
    return {"cross-layer": table(["model", "of 3 x 32,256 tokens", *DOMAINS, "mean"], rows)}


def window_cut(lab):
    panels, rows = [], []
    for model in MODELS:
        series = []
        for i, window in enumerate(WINDOWS):
            cut, full, points = [], [], []
            for budget in BUDGETS:
                runs = [lab.decode(model, d, "fate:control=0", budget, link_of(model, window))
                        for d in DOMAINS]
                full.append(mean(r["prefetch"]["recall"] or 0 for r in runs))
                cut.append(mean(r["prefetch"]["recall_in_window"] or 0 for r in runs))
                points.append((budget, cut[-1]))
            series.append(plot.Line(f"window of {window:g} transfers", points, color=i))
            rows.append([f"{model}-moe", f"{window:g}", f"{mean(full):.3f}",
                         *(f"{c:.3f}" for c in cut)])
        panels.append(plot.Panel(f"{model}-moe", "budget, % of the experts",
                                 "recall after the window cut", series, y_range=(0, 1)))
    plot.save(report.image("fate-window"), panels)
    head = ["model", "transfers in the window", "recall before the cut",
            *(f"after, {b:g} %" for b in BUDGETS)]
    return {"window-cut": table(head, rows)}


def recall_layers(lab):
    """Recall by layer, before the window cut and behind it."""
    panels = []
    for model in MODELS:
        series = []
        for i, window in enumerate((8, 4, 2, 1)):
            runs = [lab.decode(model, d, "fate:control=0", 25, link_of(model, window), "--warm", "8", "--by-layer")
                    for d in DOMAINS]
            layers = range(1, len(runs[0]["recall_by_layer"]))

            def share(key, layer):
                of = [r["recall_by_layer"][layer] for r in runs]
                return sum(l[key] for l in of) / max(1, sum(l["predicted"] for l in of))

            if i == 0:
                series.append(plot.Line("before the cut", [(l, share("recalled", l)) for l in layers],
                                        color=6))
            series.append(plot.Line(f"after, window of {window:g}",
                                    [(l, share("in_window", l)) for l in layers], color=i))
        panels.append(plot.Panel(f"{model}-moe, budget 25 %", "predicted layer",
                                 "recall, 75th percentile", series, y_range=(0.4, 1)))
    plot.save(report.image("fate-recall-layers"), panels)
    return {}


def hit_ratio(lab):
    panels, rows, worst = [], [], []
    for model in MODELS:
        for window in (2, 8):
            gbps = link_of(model, window)
            series, by_cell = [], {}
            for (predictor, cache), spec in GRID.items():
                points = []
                for budget in BUDGETS:
                    runs = [lab.decode(model, d, spec, budget, gbps) for d in DOMAINS]
                    by_cell[predictor, cache, budget] = mean(
                        r["experts"]["hit_ratio"] for r in runs)
                    points.append((budget, by_cell[predictor, cache, budget]))
                series.append(plot.Line(f"{predictor}, {cache}", points,
                                        color=("none", "activation-path", "next gate").index(
                                            predictor),
                                        dash=(2, 1, 0)[("lru", "arc", "arc + dealt").index(cache)],
                                        markers=cache == "arc + dealt"))
            belady = []
            for budget in BUDGETS:
                runs = [lab.decode(model, d, "on-demand", budget, gbps, "--oracles")
                        for d in DOMAINS]
                belady.append(mean(r["oracles"]["belady_global"] for r in runs))
            series.append(plot.Line("Belady, no prefetch", list(zip(BUDGETS, belady)), color=6))
            panels.append(plot.Panel(f"{model}-moe, window of {window} transfers",
                                     "budget, % of the experts", "hit ratio", series,
                                     y_range=(0.3, 1)))
            for (predictor, cache) in GRID:
                rows.append([f"{model}-moe", f"{window}", predictor, cache,
                             *(f"{by_cell[predictor, cache, b]:.3f}" for b in BUDGETS)])
            rows.append([f"{model}-moe", f"{window}", "Belady", "optimal",
                         *(f"{b:.3f}" for b in belady)])
            for budget in BUDGETS:
                best = max(by_cell[p, c, budget] for p, c in GRID)
                worst.append((by_cell["next gate", "arc + dealt", budget] - best, model, window,
                              budget))
    plot.save(report.image("fate-hits"), panels, columns=2)
    gap, model, window, budget = min(worst)
    text = "`fate` (next gate, arc + dealt) is the best of the nine in every cell."
    if gap < -5e-4:
        text = (f"The largest gap between `fate` and the best of the nine is {-gap:.3f} "
                f"({model}-moe, window of {window}, {budget:g} %).")
    return {"hit-ratio": table(["model", "window", "prefetch", "cache",
                                *(f"{b:g} %" for b in BUDGETS)], rows),
            "hit-ratio-gap": text}


def ratios(cells, name, x_label, columns=3):
    """cells: {(title, x): {strategy: [ms of each run]}}: charts of rival / fate, rows, the worst."""
    titles = list(dict.fromkeys(title for title, _ in cells))
    panels, rows, worst = [], [], (9, None)
    for title in titles:
        xs = [x for t, x in cells if t == title]
        series = []
        for rival in RIVALS:
            points = []
            for x in xs:
                cell = cells[title, x]
                each = [a / b for a, b in zip(cell[rival], cell["fate"])]
                points.append((x, mean(each)))
                worst = min(worst, (min(each), f"{title}, {x:g} %, against {rival}"))
            series.append(plot.Line(rival, points))
        for x in xs:
            rows.append([title, f"{x:g} %", f"{mean(cells[title, x]['fate']):.2f}",
                         *(f"{dict(s.points)[x]:.2f}" for s in series)])
        panels.append(plot.Panel(title, x_label, "time over fate's", series, rules=[(1, "")]))
    plot.save(report.image(name), panels, columns=columns)
    head = ["", "budget", "fate, ms", *RIVALS]
    return table(head, rows), worst


def decode(lab):
    cells = {}
    for model in MODELS:
        for window in WINDOWS:
            for budget in BUDGETS:
                cells[f"{model}-moe, window of {window:g}", budget] = {
                    name: [lab.decode(model, d, spec, budget, link_of(model, window))[
                        "tpot_ms"]["mean"] for d in DOMAINS]
                    for name, spec in {**RIVALS, "fate": "fate"}.items()}
    stopped = [(w, b, lab.decode(m, d, "fate", b, link_of(m, w))["prefetch"]["disabled_steps"])
               for m in MODELS for w in WINDOWS for b in BUDGETS for d in DOMAINS]
    where = sorted({b for _, b, steps in stopped if steps > 0})
    control = (f"`fate`'s predictions were stopped or rested for a part of the steps in "
               f"{sum(steps > 0 for _, _, steps in stopped)} of {len(stopped)} runs")
    control += f" (budgets of {', '.join(f'{b:g}' for b in where)} %)." if where else "."
    text, (ratio, where) = ratios(cells, "fate-decode", "budget, % of the experts")
    return {"decode": text, "control": control, "decode-worst": f"Worst of all {len(cells) * 12} single ratios: "
                                            f"{ratio:.3f} ({where})."}


def today(lab):
    """Decode as `decode` does, on routing recorded here: of today's strategies and of the first edition of fate."""
    names = {**RIVALS, "first edition": "fate:percentile=75,eviction=arc"}
    rows = []
    for model in MODELS:
        traces = [lab.trace(f"{model}-{d}-decode", [
            f"{lab.bin}/moert-run", "ppl", "--model", f"{lab.models}/{model}-moe", "--tokens", f"{lab.models}/eval/{d}.tokens.u16",
            "--limit", "1024", "--window", "128", "--step-tokens", "1", "--batch", "1", "--clock", "virtual", "--threads", "1",
            "--cache", f"{lab.work}/cache", "--quiet", "--trace"]) for d in DOMAINS]
        for window in (0.5, 2):
            for budget in BUDGETS:
                time = lambda spec: [lab.sim(t, spec, budget, link_of(model, window), "--warm", "256")["tpot_ms"]["mean"]
                                     for t in traces]
                ours = time("fate")
                rows.append([f"{model}-moe", f"{window:g}", f"{budget:g} %", f"{mean(ours):.2f}",
                             *(f"{mean(a / b for a, b in zip(time(spec), ours)):.2f}" for spec in names.values())])
    return {"today": table(["model", "window", "budget", "`fate`, ms", *names], rows)}


def prefill(lab):
    cells = {}
    for model in MODELS:
        for tokens in (32, 512):
            traces = []
            for d in DOMAINS:
                traces.append(lab.trace(f"{model}-{d}-{tokens}", [
                    f"{lab.bin}/moert-run", "ppl", "--model", f"{lab.models}/{model}-moe",
                    "--tokens", f"{lab.models}/eval/{d}.tokens.u16", "--window", str(tokens),
                    "--limit", "4096", "--clock", "virtual", "--cache", f"{lab.work}/cache",
                    "--quiet", "--trace"]))
            for window in (2, 8):
                gbps = link_of(model, window, LAYER_NS + TOKEN_NS * tokens)
                for budget in (25, 50, 75):
                    cells[f"{model}-moe, {tokens} tokens, window of {window}", budget] = {
                        name: [lab.sim(t, spec, budget, gbps)["ttft_ms"] for t in traces]
                        for name, spec in {**RIVALS, "fate": "fate"}.items()}
    text, (ratio, where) = ratios(cells, "fate-prefill", "budget, % of the experts")
    return {"prefill": text, "prefill-worst": f"Worst of all {len(cells) * 12} single ratios: "
                                              f"{ratio:.3f} ({where})."}


def shapes(lab):
    """Published shapes on the frozen workloads, w4 experts."""
    cells = {}
    for shape in ("qwen1.5-moe", "deepseek-v2-lite"):
        trace = lab.trace(f"{shape}-decode", [
            f"{lab.bin}/moert-bench", "workload", "--synthetic", shape, "--workload", "mixed",
            "--steps", "300", "--schemes", "w4a16_g128,w2a16_g64_asym", "--quiet", "--out"])
        for gbps in (4, 16, 50):
            for budget in (10, 20, 40, 60):
                cells[f"{shape}, {gbps} GB/s", budget] = {
                    name: [lab.sim(trace, spec, budget, gbps)["tpot_ms"]["mean"]]
                    for name, spec in {**RIVALS, "fate": "fate"}.items()}
    text, (ratio, where) = ratios(cells, "fate-shapes", "budget, % of the experts")
    return {"shapes": text, "shapes-worst": f"Worst: {ratio:.3f} ({where})."}


def ablation(lab):
    """Prefetch, cache and quantization one after another, as the paper's Fig. 14."""
    pack = lab.pack("small", "bf16,w4a16_g128,w2a16_g64_asym")
    steps = {
        "load-on-demand, bf16": "load-on-demand:scheme=bf16",
        "on-demand (LRU), bf16": "on-demand:scheme=bf16",
        "+ prefetch by the next gate": "on-demand:scheme=bf16+fate.prefetch",
        "+ ARC, dealt slots (fate)": "fate:scheme=bf16",
        "+ w4": "fate:scheme=w4a16_g128",
        "+ hybrid w4/w2, rho 0.1": "fate:scheme=w4a16_g128,low=w2a16_g64_asym,rho=0.1",
        "+ w2 on a decode miss": "fate:scheme=w4a16_g128,low=w2a16_g64_asym,rho=0.1,miss_bits=low",
    }
    common = ["--model", f"{lab.models}/small-moe", "--experts", pack, "--tokens",
              f"{lab.models}/eval/wikitext2.tokens.u16", "--clock", "virtual", "--quiet",
              "--strategy", "resident:scheme=bf16"]
    run = [f"{lab.bin}/moert-run", "ppl", *common]
    traces = {"prefill, 128 tokens": lab.trace("ablation-prefill", [
                  *run, "--window", "128", "--limit", "4096", "--trace"]),
              "decode": lab.trace("ablation-decode", [
                  *run, "--step-tokens", "1", "--limit", "1024", "--trace"])}
    gbps = link_of("small", 0.5)
    # The same bytes of memory for all: an eighth of the experts in bf16.
    budget = lab.sim(traces["decode"], "fate:scheme=bf16", 12.5, gbps, "--max-tokens",
                     "512")["budget_bytes"]
    rows, values = [], {phase: [] for phase in traces}
    for name, spec in steps.items():
        row = [name]
        for phase, trace in traces.items():
            r = lab.run([f"{lab.bin}/moert-sim", "--trace", trace, "--strategy", spec, "--budget",
                         str(budget), "--link-gbps", f"{gbps:.6g}", "--max-tokens", "512",
                         "--json", "-", "--quiet"])
            ms = r["ttft_ms"] if phase != "decode" else r["tpot_ms"]["mean"]
            values[phase].append(ms)
            row += [f"{ms:.2f}", f"{values[phase][0] / ms:.2f}"]
        rows.append(row)
    plot.save(report.image("fate-ablation"), [
        plot.Panel(phase, "", "speed over load-on-demand", [
            plot.Bars("", [v[0] / x for x in v])],
            categories=["LoD", "LRU", "+gate", "fate", "+w4", "+hybrid", "+w2 miss"])
        for phase, v in values.items()], panel_width=420)
    head = [""]
    for phase in traces:
        head += [f"{phase}, ms", "over the first"]
    return {"ablation": table(head, rows)}


def rho_losses(lab, domain, shares, first=0):
    """Loss in percent and bytes over those of share 0, on RHO_TOKENS tokens from `first` on."""
    tokens = f"{lab.models}/eval/{domain}.tokens.u16"
    if first > 0:
        with open(tokens, "rb") as file:
            rest = file.read()[2 * first:]
        tokens = f"{lab.work}/{domain}-{first}.tokens.u16"
        with open(tokens, "wb") as file:
            file.write(rest)
    loss, fewer = [], []
    for share in shares:
        r = lab.ppl("small", domain, "--tokens", tokens, "--experts", lab.pack("small"), "--budget",
                    "25%", "--limit", str(RHO_TOKENS), "--window", "256", "--link-gbps",
                    f"{link_of('small', 8):.6g}", "--strategy",
                    f"fate:scheme=w4a16_g128,low=w2a16_g64_asym,rho={share}")
        if share == 0:
            base = r
        loss.append(100 * (math.exp(r["nll"] - base["nll"]) - 1))
        fewer.append(r["experts"]["bytes_loaded"] / base["experts"]["bytes_loaded"])
    return loss, fewer


def rho_held_out(lab):
    """The default share on tokens that it was not chosen on."""
    rows = []
    for d in DOMAINS:
        loss, fewer = rho_losses(lab, d, (0, RHO), RHO_TOKENS)
        rows.append([d, f"{loss[1]:+.2f} % ({fewer[1]:.2f})"])
    return {"rho-held-out": table(["domain", f"rho {RHO:g}"], rows)}


def rho(lab):
    shares = (0, 0.05, 0.1, 0.2, 0.3, 0.5, 1)
    rows, series, best = [], [], 1.0
    for i, d in enumerate(DOMAINS):
        loss, fewer = rho_losses(lab, d, shares)
        within = [s for s, l in zip(shares, loss) if l <= 1]
        best = min(best, max(within))
        series.append(plot.Line(d, list(zip(shares, loss)), color=i))
        rows.append([d, *(f"{l:+.2f} % ({f:.2f})" for l, f in zip(loss, fewer))])
    plot.save(report.image("fate-rho"), [plot.Panel("small-moe, w4 with w2, HQQ", "rho",
                                                "perplexity over w4's, %", series,
                                                rules=[(1, "1 %")])], panel_width=420)
    return {"rho": table(["domain", *(f"rho {s:g}" for s in shares)], rows),
            "rho-best": f"The largest of these shares within 1 % in every domain: **rho = {best:g}**."}


PARTS = {"cross-layer": cross_layer, "window": window_cut, "layers": recall_layers, "hits": hit_ratio, "decode": decode, "today": today,
         "prefill": prefill, "shapes": shapes, "ablation": ablation, "rho": rho,
         "rho-held-out": rho_held_out}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--work", default="/tmp/fate")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rho", action="store_true", help="only the search of rho")
    options = parser.parse_args()
    lab = Lab(options)
    parts = {}
    for name in ["rho"] if options.rho else options.only.split(","):
        print(name, file=sys.stderr)
        parts.update(PARTS[name](lab))
    report.store_tables("fate-replay", parts)
    report.write("fate", parts)


if __name__ == "__main__":
    main()
