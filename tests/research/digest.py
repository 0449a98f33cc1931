"""The tables of docs/results and README.md, made from docs/results/data. pages.py puts them there."""
import json
import math
import re

import envelope
import experiment
import h200_page as h200
import house
import quality_allocator as plans
import quality_dynaexq as dynaexq
import quality_dynaexq_page as dynaexq_page
import quality_lib as lib
import report
import transformers_page


def data(name):
    return json.loads((report.DATA / f"{name}.json").read_text(encoding="utf-8"))


def stored(name, table, columns=None, rows=None):
    """A stored table, or some of its columns (by name) and rows (a filter)."""
    t = data(name)["tables"][table]
    chosen = [t["columns"].index(c) for c in columns] if columns else range(len(t["columns"]))
    return experiment.table([t["columns"][i] for i in chosen],
                            [[row[i] for i in chosen] for row in t["rows"] if rows is None or rows(row)])


def two(x):
    return f"{x:.2f}"


# Strategies on an H200

def fate_decode():
    """A row a shape and link, a column a budget: ms, time of on-demand over it, prefetches per step."""
    cells = h200.fate_cells(h200.load("fate"), "decode")
    budgets = list(dict.fromkeys(c[2] for c in cells))
    rows = {}
    for shape, link, budget, known, _ in cells:
        v = known[f"fate:scheme={h200.W4}"]
        over = known[h200.FATE_RIVALS["on-demand"]]["step_mean_ms"] / v["step_mean_ms"]
        rows.setdefault((shape, h200.link_name(link)), {})[budget] = (
            f"{two(v['step_mean_ms'])} ({two(over)}; {v['prefetch_issued'] / v['steps']:.0f})")
    return experiment.table(["shape", "link", *budgets],
                            [[*key, *(row[b] for b in budgets)] for key, row in rows.items()])


def fate_multiples():
    return h200.fate_claims(h200.load("fate")).replace("... of a prediction never wrong", "the same of a perfect prediction")


def score_eviction():
    """The exact strategies side by side in the importance runs: a row a shape, a column a batch and link."""
    spec, rows, heads = "on-demand+importance.residency", {}, []
    for shape, link, batch, known in h200.importance_groups(h200.load("importance")):
        if spec in known:
            head = f"batch {batch}, {h200.link_name(link)}"
            heads += [head] * (head not in heads)
            ms = [two(known[s]["step_mean_ms"]) for s in ("on-demand", "fate", spec)]
            rows.setdefault(shape, {})[head] = " / ".join(ms)
    return experiment.table(["ms per step: `on-demand` / `fate` / `on-demand+importance.residency`", *heads],
                            [[shape, *(row.get(h, "-") for h in heads)] for shape, row in rows.items()])


def importance_summary():
    groups = [k for _, _, _, k in h200.importance_groups(h200.load("importance")) if h200.OURS in k]
    batches = {b: [k for _, _, batch, k in h200.importance_groups(h200.load("importance"))
                   if batch == b and h200.OURS in k] for b in (1, 3)}
    assert groups

    def cell(batch, ours, rivals):
        found = [100 * (k[ours]["step_mean_ms"] / min(k[r]["step_mean_ms"] for r in rivals if r in k) - 1)
                 for k in batches[batch]]
        return f"{sum(found) / len(found):+.0f} % ({max(found):+.0f} .. {min(found):+.0f})"

    filled = h200.IMPORTANCE_RIVALS + [h200.FILLED_RIVAL]
    no_cpu = ["on-demand", "activation-path", "fate"]
    rows = [[name, cell(1, ours, rivals), cell(3, ours, rivals)] for name, ours, rivals in (
        ("alpha 0.1, the default", "importance", h200.IMPORTANCE_RIVALS),
        ("alpha 0.1, the rival given `fill` too", "importance", filled),
        ("alpha 0.3, the paper's", h200.OURS, h200.IMPORTANCE_RIVALS),
        ("alpha 0.3, the rival given `fill` too", h200.OURS, filled),
        ("alpha 0.1, rivals without a CPU", "importance", no_cpu))]
    return experiment.table(["time per step against the best rival", "batch 1", "batch 3"], rows)


def offload():
    rows, stored_runs = [], h200.load("dynaexq")
    for batch in (1, 8, 32):
        v = {x["strategy"].split(":")[0]: x for x in h200.variants(stored_runs[f"offload-{batch}"])}
        ours, cache = v["dynaexq"], v["on-demand"]
        uniform = h200.variants(stored_runs[f"bounds-{batch}"])[2]
        text = lambda x: f"{x['step_mean_ms']:.2f} ({x['step_p50_ms']:.2f})"
        rows.append([str(batch), text(ours), f"{100 * ours['low_answers']:.0f} %", text(cache),
                     text(v["never-stall"]), f"{cache['step_mean_ms'] / ours['step_mean_ms']:.1f} "
                     f"({cache['step_p50_ms'] / ours['step_p50_ms']:.1f})", two(uniform["step_mean_ms"])])
    return experiment.table(["batch", "`dynaexq`, mean (median) ms", "answered low", "`on-demand`, bf16",
                             "`never-stall`", "ratio of means (medians)", "uniform w4, all resident"], rows)


def offload_converged():
    """Strategies behind each other, a row a batch and strategy."""
    run = data("h200-offload")
    rows = [[str(group.get("batch", 1)), f"`{v['strategy'].split('@')[0]}`", f"{v['budget_bytes'] / 2**30:.2f}",
             f"{v['step_mean_ms']:.2f} ({v['step_p50_ms']:.2f})", f"{v['step_p99_ms']:.2f}",
             f"{100 * v['hit_ratio']:.1f} %"]
            for group in run["groups"] for v in group["variants"]]
    return experiment.table(["batch", "strategy", "GiB", "mean (median) ms", "P99", "hits"], rows)


def adaptation():
    """What transitions cost, by batch; the columns that all rows share left out."""
    columns, rows = report.tables_of(h200.adaptation(h200.load("dynaexq")))[0]
    return experiment.table(columns[:7], [row[:7] for row in rows])


def adaptation_prompts():
    """What transitions cost the first token, by prompt."""
    columns, rows = report.tables_of(h200.adaptation(h200.load("dynaexq")))[1]
    return experiment.table(columns, rows)


# Two precisions, quantization

def equal_bytes(model):
    """The shares recovered, without their errors and the columns that compare."""
    columns, rows = report.tables_of(dynaexq_page.equal_table(data("quality-dynaexq")["equal"][model]))[0]
    return experiment.table(columns[:8], [[cell.split(" ±")[0] for cell in row[:8]] for row in rows])


def uniform_perplexity():
    equal = data("quality-dynaexq")["equal"]
    rows = [[s] + [f"{dynaexq_page.mib(equal[m]['uniform'][s]['bytes'])} MiB: "
                   f"{dynaexq_page.perplexity(equal[m]['uniform'][s]['nll']):.3f}" for m in ("tiny-moe", "small-moe")]
            for s in dynaexq.SCHEMES]
    return experiment.table(["scheme", "tiny-moe", "small-moe"], rows)


def scheme_losses():
    """Loss over bf16 of every scheme and quantizer, pooled over domains."""
    quantizers = ["rtn", "hqq", "gptq", "rtn+hadamard", "hqq+hadamard", "gptq+hadamard"]
    rows = []
    for model, entry in data("quality-schemes").items():
        base = lib.pooled(entry["bf16"]["nll"])
        for scheme in ("w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g128_asym"):
            cells = [lib.difference(lib.pooled(entry[f"{scheme} {q}"]["nll"]), base) for q in quantizers]
            rows.append([model, scheme, f"{entry[f'{scheme} rtn']['stored_bits']:.2f}"] +
                        [f"{m:+.4f} ± {half:.4f}" for m, half in cells])
    return experiment.table(["model", "scheme", "bits", *quantizers], rows)


def plan_gains():
    """Gain of plans over uniform schemes of the same bytes."""
    entries, rows = data("quality-plans"), []
    for prefix, model, widths in (("", "small-moe", plans.UNIFORM), ("tiny ", "tiny-moe", plans.TINY)):
        for bits in widths:
            row = [model, bits]
            for how in ("gptq", "gptq hadamard", "hqq", "hqq hadamard"):
                names = [f"{prefix}{bits} {kind} {how}" for kind in ("plan", "uniform")]
                if not all(n in entries for n in names):
                    row.append("-")
                    continue
                m, half = lib.difference(*(lib.pooled(entries[n]["nll"]) for n in names))
                row.append(f"{m:+.4f} ± {half:.4f} ({100 * (math.exp(m) - 1):+.1f} %)")
            rows.append(row)
    return experiment.table(["model", "bits", "gptq", "gptq, Hadamard", "hqq", "hqq, Hadamard"], rows)


def plan_choices():
    columns, rows = report.tables_of("\n".join(plans.choices(data("quality-plans"))))[0]
    return experiment.table(columns, [row for row in rows if not row[0].endswith(")")])


def plan_activations():
    t = report.tables_of("\n".join(plans.activations(data("quality-plans"))))[0]
    keep = [0, 1, 5]
    return experiment.table([t[0][i] for i in keep], [[r[i] for i in keep] for r in t[1]
                                                      if "emulated" not in r[0]])


# Grouped product, simulator

def gemm_grid(batches, text, zipf=0):
    rows = [r for run in data("gemm-h200")["runs"] for r in run["results"] if r["zipf"] == zipf]
    kinds = list(dict.fromkeys((r["shape"], r["scheme"]) for r in rows))
    kinds.sort(key=lambda kind: kind[0] != "qwen3-30b")
    known = {(r["shape"], r["scheme"], r["tokens"]): r for r in rows}
    out = []
    for kind in kinds:
        cells = [text(known[(*kind, t)]) if (*kind, t) in known else "-" for t in batches]
        if set(cells) != {"-"}:
            out.append([*kind, *cells])
    return experiment.table(["shape", "scheme", *(f"{t} tokens" for t in batches)], out)


def gemm_shares():
    return gemm_grid((1, 8, 32), lambda r: f"{100 * r['of_copy']:.0f} %: {r['gemms_us']['median']:.0f} "
                                           f"({r['layer_us']['median']:.0f})")


def gemm_many():
    return gemm_grid((128, 512, 2048, 8192), lambda r: f"{r['tflops']:.0f}: {r['gemms_us']['median']:.0f} "
                                                 f"({r['layer_us']['median']:.0f})")


def gemm_zipf():
    return gemm_grid((32, 512, 2048, 8192), lambda r: f"{r['gemms_us']['median']:.0f} "
                                                      f"({r['layer_us']['median']:.0f})", zipf=0.8)


def predictions():
    """Error of the predicted step, measured ms in brackets; a row a strategy, a column a budget."""
    rows = data("predicted")["rows"]
    budgets = sorted({r["budget"] for r in rows}, key=lambda b: float(b.rstrip("%")))
    known = {(r["strategy"], r["budget"]): r for r in rows}
    cell = lambda r: f"{100 * (r['predicted_ms'] / r['measured_ms'] - 1):+.1f} % ({two(r['measured_ms'])})" if r else "-"
    return experiment.table(["strategy", *budgets],
                            [[f"`{s}`", *(cell(known.get((s, b))) for b in budgets)]
                             for s in dict.fromkeys(r["strategy"] for r in rows)])


def four_shapes():
    """ms per step at 40 %, by shape."""
    rows = data("shapes")["rows"]
    shapes = list(dict.fromkeys(r["shape"] for r in rows))
    known = {(r["shape"], r["strategy"]): r for r in rows}
    out = [[f"`{s}`"] + [f"{known[shape, s]['step_ms']['mean']:.2f} ({100 * known[shape, s]['hit_ratio']:.0f})"
                         if (shape, s) in known else "-" for shape in shapes]
           for s in dict.fromkeys(r["strategy"] for r in rows)]
    return experiment.table(["strategy", *(s.split(":")[0] for s in shapes)], out)


# One strategy against the best of the others, cell by cell

def envelope_cells():
    return data("envelope")["cells"]


def envelope_exact():
    return experiment.table(["budget", *envelope.LINKS.values()], envelope.exact_rows(envelope_cells()))


def envelope_rivals():
    return experiment.table(["time over that of `fate`", *envelope.LINKS.values()], envelope.rival_rows(envelope_cells()))


def envelope_bounded():
    """Time of each over that of graded, and the largest share of its mass that any request lost."""
    return experiment.table(["time over that of the first", *(envelope.LINKS[l] for l in envelope.BOUNDED_LINKS)],
                            envelope.bounded_rows(envelope_cells()))


def envelope_auto():
    columns = ["", "cells", "as fast as the fastest, or faster", "within 1 %", "mean", "least", "largest share lost"]
    return experiment.table(columns, envelope.auto_rows(envelope_cells()))


def envelope_auto_behind():
    """The cells in which auto is most behind."""
    found = envelope.auto_behind(envelope_cells())
    rows = [[what, *map(str, c[:3]), f"{c[3]} %", envelope.LINKS[c[4]], f"`{rival}`", f"{v:.3f}"]
            for what, v, c, rival in found[:12]]
    columns = ["of the losing cells the worst", "model", "domain", "batch", "budget", "link", "fastest", "its time over that of `auto`"]
    return experiment.table(columns, rows) if rows else "It loses in no cell."


def graded_loss():
    """Of every cell: loss of perplexity by domain and over all, and the shares of the mass that were lost."""
    rows = []
    for name, cell in data("graded-quality").items():
        model, budget, keys = name.split(" ")
        rows.append([model, budget, f"`{keys}`", *(f"{m:+.2f} ± {e:.2f}" for m, e in cell["loss"].values()),
                     f"{100 * cell['low']:.2f}", f"{100 * cell['substituted']:.2f}"])
    columns = ["model", "budget", "graded", *lib.DOMAINS, "all", "low, %", "substituted, %"]
    return experiment.table(columns, rows)


def lookahead_recall():
    found = data("lookahead")
    return experiment.table(["recall of", *found], [[f"{d} layer{'s' * (d > 1)} ahead"] + [
        f"{100 * found[m]['recall'][str(d)]:.1f} %" for m in found] for d in (1, 2, 3)])


def lookahead_times():
    """Time without prefetch over that of one layer ahead; in brackets, that of one layer ahead over that of two."""
    rows, windows = {}, []
    for model, found in data("lookahead").items():
        for name, (none, one, two) in found["times"].items():
            budget, window = name.split(" ")
            windows += [window] if window not in windows else []
            rows.setdefault((model, budget), []).append(f"{none / one:.3f} ({one / two:.3f})")
    columns = ["model", "budget", *(f"{w} transfers in a layer's time" for w in windows)]
    return experiment.table(columns, [[m, f"{100 * float(b):g} %", *cells] for (m, b), cells in rows.items()])


def envelope_before():
    return experiment.table(["budget", *envelope.LINKS.values()], envelope.exact_rows(envelope.earlier(data("envelope"))))


def behind_text(cells):
    values = envelope.shares(cells, "exact", envelope.OURS, envelope.EXACT_RIVALS)
    return (f"Of {len(values)} cells {sum(v < 0.99 for v in values)} are below 0.99, {sum(v < 0.95 for v in values)} below 0.95. "
            f"The mean is {lib.mean(values):.3f}, the least {min(values):.3f}.")


def envelope_behind():
    """In a line how many there are, before and now, then all of them."""
    cells = envelope_cells()
    text = f"{behind_text(cells)}\n\nBefore: {behind_text(envelope.earlier(data('envelope')))}"
    rows = [[c[0], c[1], f"{c[2]}", f"{c[3]} %", envelope.LINKS[c[4]], f"{v:.3f}"] for v, c in envelope.behind(cells)]
    table = experiment.table(["model", "domain", "batch", "budget", "link", "best of four over `fate`"], rows)
    return f"{text}\n\n{table}" if rows else text


# README and summary: one row a claim, figures from the data

def first(text):
    return text.replace("*", "").split(" ")[0]


def readme():
    whole = {r[0].split(", ")[-1]: r for r in data("rivals")["tables"]["Whole decoders"]["rows"]}
    table = data("rivals")["tables"]["The grouped product, prompts included"]
    grouped = {r[0]: dict(zip(table["columns"], r)) for r in table["rows"]}
    times = lambda name: ", ".join(first(grouped[t][name]) for t in ("8", "512", "8192"))
    ggml = {r[0]: r for r in data("cpu-kernels")["tables"]["ggml repacked, 16 cores"]["rows"]}
    tokens = ("1", "8", "32", "512")
    ours = {r[0]: r for r in data("rivals")["tables"]["Ours, extrapolated to 48 layers"]["rows"]}
    plug = {r[0]: r for r in data("rivals")["tables"]["llama.cpp with the plug-in, on a GPU"]["rows"]}
    torch = {(r[0], r[1]): first(r[2]) for r in map(transformers_page.cells, transformers_page.stored()["rows"])}
    rows = [
        ["Decode, Qwen3-30B-A3B's shape, 4 bits, one H200, tokens/s: all experts in HBM; a quarter, uniform routing",
         f"{data('decoder')['decode'][0]['tokens_per_s']:.0f}; "
         f"{ours['25 % of the experts, uniform routing'][2]} (extrapolated from 12 of 48 layers)",
         f"llama.cpp {whole['100 %'][1]}; {whole['25 %'][1]}. ik_llama.cpp {whole['100 %'][4]}; {whole['25 %'][4]}"],
        ["Stock llama.cpp with the plug-in, the same shape, a quarter and a half of the experts in HBM, tokens/s: "
         "routing that favours some; uniform",
         f"{plug['25 %'][1]}, {plug['50 %'][1]}; {plug['25 %'][2]}, {plug['50 %'][2]}",
         f"llama.cpp {plug['25 %'][3]}, {plug['50 %'][3]}; ik_llama.cpp {plug['25 %'][4]}, {plug['50 %'][4]}"],
        ["transformers, compiled, all experts in HBM, tokens/s: bf16; w4",
         f"{torch['libmoert, bf16, compiled', '100 %']}; {torch['libmoert, w4a16_g128, compiled', '100 %']}",
         f"transformers' own {torch['transformers, compiled', '100 %']} in bf16"],
        ["Grouped product, the same shape, 8, 512 and 8192 tokens, us",
         f"bf16 {times('ours bf16')}; w4 {times('ours w4')}",
         f"Triton bf16 {times('Triton bf16')}; w4 {times('Triton w4')}. torch bf16 {times('torch bf16')}"],
        ["CPU, 16 cores with AMX, " + ", ".join(tokens) + " tokens, GFLOP/s",
         "w4a8 " + ", ".join(ggml[t][3] for t in tokens) + "; w8a8 " + ", ".join(ggml[t][6] for t in tokens),
         "ggml Q4_0 repacked " + ", ".join(first(ggml[t][2]) for t in tokens) + ", plain " +
         ", ".join(first(ggml[t][1]) for t in tokens) + "; Q8_0 " + ", ".join(first(ggml[t][5]) for t in tokens)]]
    head = ["what", "libmoert", "beside it"]
    return "\n".join(["| " + " | ".join(head) + " |", "|---|---|---|"] + ["| " + " | ".join(r) + " |" for r in rows])


def architecture():
    return house.show()


def fate_disk():
    """Decode with experts on a disk: mean of fate, and the rivals' times over it."""
    import bench_fate_disk
    t = report.tables_of(bench_fate_disk.part(data("fate-disk"), "decode"))[0]
    return experiment.table(t[0], [[r[0], r[1], r[2], r[3]] + [c.split(" (")[0] for c in r[4:]] for r in t[1]])
