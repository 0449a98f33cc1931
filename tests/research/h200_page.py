"""Reports what bench_h200.py measured: build/report/h200.md. Keys of runs that were repeated in processes
of their own end in "/2", "/3"."""
import json
import os
import re

import bench_strategies
import report
from experiment import table
from h200_runs import (ALGORITHM2, FILLED_RIVAL, IMPORTANCE_PARTS, IMPORTANCE_PREFILL,
                       IMPORTANCE_RIVALS, IMPORTANCE_SHAPES, LINKS, OURS, PARTS, SHAPES, W2, W4, W8)



def load(part):
    path = report.DATA / f"h200-{part}.json"
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def repeats_of(results, key):
    return [r for k, r in results.items() if k == key or k.startswith(key + "/")]


def variants(result, budget=None):
    group = next(g for g in result["groups"] if budget is None or g["budget"] == budget)
    return group["variants"]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def ratio_text(pairs):
    """Mean of ratios, and their range where there are several."""
    ratios = [a / b for a, b in pairs]
    text = f"{100 * (mean(ratios) - 1):+.1f} %"
    if len(ratios) > 1:
        text += f" ({100 * (min(ratios) - 1):+.1f} .. {100 * (max(ratios) - 1):+.1f})"
    return text


def adaptation(results):
    rows, churned = [], []
    for batch in (1, 8, 32):
        runs = [variants(r) for r in repeats_of(results, f"adapt-{batch}")]
        if not runs:
            continue
        of = lambda i, field: [v[i][field] for v in runs]
        pairs = lambda i, field: list(zip(of(i, field), of(2, field)))
        for i, name in ((1, "on, defaults"), (3, "on, no hysteresis, every 20 ms")):
            moved = mean(v[i]["promotions"] / v[i]["steps"] for v in runs)
            rows.append([str(batch), name, f"{moved:.1f}", f"{mean(of(2, 'step_mean_ms')):.2f}",
                         f"{mean(of(i, 'step_mean_ms')):.2f}", ratio_text(pairs(i, "step_mean_ms")),
                         ratio_text(pairs(i, "step_p99_ms")),
                         f"{mean(v[i]['host']['begin_us'] - v[2]['host']['begin_us'] for v in runs):.0f}",
                         f"{max(v[i]['host']['driver_waits_a_step'] for v in runs):.0f}"])
    for prompt in (128, 512, 2048):
        runs = [variants(r) for r in repeats_of(results, f"ttft-{prompt}")]
        if runs:
            churned.append([str(prompt)] + [f"{mean(v[i]['step_p50_ms'] for v in runs):.2f}" for i in (4, 2, 1, 3)] +
                           [ratio_text([(v[i][field], v[2][field]) for v in runs])
                            for i, field in ((1, "step_p50_ms"), (1, "step_mean_ms"), (1, "step_p99_ms"),
                                             (3, "step_mean_ms"))])
    text = table(["batch", "transitions", "promotions per step", "frozen, ms", "on, ms", "mean", "P99",
                  "BeginStep, us more", "driver waits"], rows)
    if churned:
        text += "\n\nTTFT in ms, one prompt at a time, medians, and what adaptation adds:\n\n" + table(
            ["prompt", "all low", "frozen", "on, defaults", "on, no hysteresis", "median", "mean",
             "P99", "mean, no hysteresis"], churned)
    return text


def bounds(results):
    rows = []
    for batch in (1, 8, 32):
        runs = [variants(r) for r in repeats_of(results, f"bounds-{batch}")]
        if runs:
            rows.append([str(batch)] + [f"{mean(v[i]['step_mean_ms'] for v in runs):.2f}" for i in (2, 1, 0)] +
                        [f"{mean(v[0]['promotions'] / v[0]['steps'] for v in runs):.1f}"] +
                        [ratio_text([(v[0][field], v[1][field]) for v in runs])
                         for field in ("step_mean_ms", "step_p99_ms")] + [f"{mean(v[3]['step_mean_ms'] for v in runs):.2f}"])
    return table(["batch", "all w4", "26 % bf16, static", "the same, adapting", "promotions per step", "mean", "P99",
                  "all bf16"], rows)


def offload(results):
    low = {g["batch"]: g["variants"][0] for r in repeats_of(results, "offload-low") for g in r["groups"]}
    rows = []
    for batch in (1, 8, 32):
        for group in (g for r in repeats_of(results, f"offload-{batch}") for g in r["groups"]):
            # The last of a name: the dynaexq that begins with what the first has found.
            v = {x["strategy"].split(":")[0]: x for x in group["variants"]}
            ours, slow = v["dynaexq"], [v["on-demand"], v["expertflow-like"]]
            text = lambda x: f"{x['step_p50_ms']:.2f} ({x['step_mean_ms']:.2f})" if x else "-"
            rows.append([str(batch)] + [text(x) for x in (ours, low.get(batch, v.get("never-stall")), *slow)] +
                        [f"{x['step_p50_ms'] / ours['step_p50_ms']:.1f}x" for x in slow] +
                        [f"{100 * v['on-demand']['hit_ratio']:.0f} %"])
    return table(["batch", "dynaexq, ms", "never-stall", "on-demand", "expertflow-like",
                  "on-demand over dynaexq", "expertflow-like over dynaexq", "on-demand hits"], rows)


def name_of(spec):
    for scheme in (W4, W2, W8, "bf16"):
        spec = spec.replace(f":scheme={scheme},", ":").replace(f":scheme={scheme}", "")
    return "`" + spec.replace("_asym", "") + "`"


def shift(results):
    rows = []
    for result in repeats_of(results, "shift-8"):
        for group in result["groups"]:
            first = group["variants"][0]
            for v in group["variants"]:
                busy = (v["host"] or {}).get("busy_us_a_layer")
                rows.append([group["budget"], str(group["batch"]), name_of(v["strategy"]), spread_text(v),
                             f"{v['stall_ms']:.2f}", f"{100 * v['hit_ratio']:.0f} %",
                             f"{v['step_mean_ms'] / first['step_mean_ms']:.2f}",
                             "-" if busy is None else f"{busy:.0f}"])
    return table(["budget", "batch", "strategy", "ms per step", "of it waiting", "hits", "over the first",
                  "host, us per layer"], rows)


def counted(variant):
    return "refused" not in variant


def repetition_ratios(other, mine):
    """Time of `other` over that of `mine`, a repetition: they ran the same steps, in turn."""
    if "repetition_ms" in other and "repetition_ms" in mine:
        return [a / b for a, b in zip(other["repetition_ms"], mine["repetition_ms"])]
    return [other["step_mean_ms"] / mine["step_mean_ms"]]


def spread_text(variant):
    return f"{variant['step_mean_ms']:.2f} ({variant['step_ms']['min']:.2f} .. {variant['step_ms']['max']:.2f})"


def over_text(other, mine):
    ratios = repetition_ratios(other, mine) if "repetition_ms" in other else []
    text = f"{other['step_mean_ms'] / mine['step_mean_ms']:.2f}"
    return text + (f" ({min(ratios):.2f} .. {max(ratios):.2f})" if len(ratios) > 1 else "")


FATE_RIVALS = {"load-on-demand": f"load-on-demand:scheme={W4}", "on-demand": f"on-demand:scheme={W4}",
               "activation-path": f"activation-path:scheme={W4}",
               "activation-path, fate's cache": f"activation-path:scheme={W4}+fate.residency"}
MISSING = "Not measured yet."


def fate_cells(results, bench):
    """[(shape, link, budget, {strategy: variant}, result)] of the comparisons, by shape, link and budget."""
    cells = []
    for shape in SHAPES:
        for link in sorted(LINKS, key=lambda link: -link or -1e9):
            of = []
            for key in (f"{shape}-{link}-{bench}", f"{shape}-{link}-{bench}-25"):
                for result in repeats_of(results, key)[:1]:
                    for group in result["groups"]:
                        known = {v["strategy"]: v for v in group["variants"] if counted(v)}
                        of.append((shape, link, group["budget"], known, result))
            # Load-on-demand keeps nothing: one run of it does for every budget.
            name = FATE_RIVALS["load-on-demand"]
            once = next((known[name] for _, _, _, known, _ in of if name in known), None)
            for _, _, _, known, _ in of:
                if once and name not in known:
                    known[name] = {k: v for k, v in once.items() if k != "repetition_ms"}
            cells += sorted(of, key=lambda c: float(c[2].rstrip("%")))
    return cells


def link_name(link):
    return f"{link} GB/s" if link else "full"


def fate_times(results, bench):
    rows = []
    mine, low = f"fate:scheme={W4}", f"fate:scheme={W4},low={W2}"
    for shape, link, budget, known, result in fate_cells(results, bench):
        if mine not in known:
            continue
        v = known[mine]
        row = [shape, link_name(link), str(result["shape"]["layers"]), budget, spread_text(v), f"{v['stall_ms']:.2f}",
               f"{100 * v['hit_ratio']:.0f} %"]
        row += [over_text(known[r], v) if r in known else "-" for r in FATE_RIVALS.values()]
        if bench == "prefill":
            row.append(over_text(v, known[low]) if low in known else "-")
        rows.append(row)
    head = ["shape", "link", "layers", "budget", "fate, ms", "of it waiting", "hits", *FATE_RIVALS]
    return table(head + (["fate over fate with w2"] if bench == "prefill" else []), rows) if rows else MISSING


def fate_worst(results):
    """One row a rival and phase: the range of its time over fate's, and where fate is slower."""
    rows = []
    for bench in ("decode", "prefill"):
        for name, rival in FATE_RIVALS.items():
            ratios = []
            for shape, link, budget, known, _ in fate_cells(results, bench):
                mine = known.get(f"fate:scheme={W4}")
                if mine and rival in known:
                    ratios.append((known[rival]["step_mean_ms"] / mine["step_mean_ms"],
                                   f"{shape}, {link_name(link)}, {budget}"))
            if ratios:
                below = [r for r, _ in ratios if r < 0.97]
                rows.append([bench, name, str(len(ratios)), f"{min(ratios)[0]:.3f} ({min(ratios)[1]})",
                             f"{mean(r for r, _ in ratios):.2f}", f"{max(ratios)[0]:.2f} ({max(ratios)[1]})",
                             f"**{len(below)}**"])
    return table(["", "time over fate's of", "cells", "worst", "mean", "best", "below 0.97"], rows) if rows else MISSING


def fate_claims(results):
    """The paper's multiples beside the least and greatest here, by link; budgets of 25 % and more."""
    mine, low, rivals = f"fate:scheme={W4}", f"fate:scheme={W4},low={W2}", FATE_RIVALS
    rows = []
    for claim, paper, bench, above, below in (
            ("decode over load-on-demand", "4.1, low-end 2.3", "decode", rivals["load-on-demand"], mine),
            ("prefill over load-on-demand", "4.5, low-end 1.8", "prefill", rivals["load-on-demand"], mine),
            ("... with w2 for the least popular", "", "prefill", rivals["load-on-demand"], low),
            ("decode over activation-path, same cache", "2.2, low-end 1.6", "decode", rivals["activation-path, fate's cache"], mine),
            ("prefill over activation-path, same cache", "1.9, low-end 1.5", "prefill", rivals["activation-path, fate's cache"], mine),
            ("decode over on-demand", "", "decode", rivals["on-demand"], mine),
            ("... of a prediction never wrong, cache LRU", "", "decode", rivals["on-demand"], None)):
        row = [claim, paper]
        for link in (0, 16, 4):
            ratios = []
            for _, of, budget, known, _ in fate_cells(results, bench):
                if of != link or budget == "10%" or above not in known:
                    continue
                bound = (known.get(mine, {}).get("oracles") or {}).get("perfect_prefetch_lru_ms")
                time = known[below]["step_mean_ms"] if below in known else bound if below is None else None
                if time:
                    ratios.append(known[above]["step_mean_ms"] / time)
            row.append(f"{min(ratios):.2f} .. {max(ratios):.2f}" if ratios else "-")
        rows.append(row)
    return table(["", "paper", "full link", "16 GB/s", "4 GB/s"], rows)


def fate_host(results):
    """Runs with the driver's calls counted, which costs them time: for nothing but this table."""
    rows = []
    for shape in SHAPES:
        for result in repeats_of(results, f"host-{shape}"):
            known = {v["strategy"]: v for v in variants(result)}
            for name in [f"fate:scheme={W4}", *FATE_RIVALS.values()]:
                host = known[name]["host"]
                rows.append([shape, name_of(name), f"{host['busy_us_a_layer']:.0f}", f"{host['launches_a_layer']:.1f}",
                             f"{host['driver_waits_a_step']:.0f}"])
    return table(["shape", "strategy", "host, us per layer", "launches per layer", "waits a step"], rows) if rows else MISSING


def fate_ablation(results):
    names = ["load-on-demand, bf16", "+ prefetch by the next gate", "+ cache (`fate`, bf16)", "+ w4",
             "+ w2 for a prompt's least popular and for misses"]
    rows = []
    for shape in SHAPES:
        runs = [repeats_of(results, f"{shape}-ablation-{bench}") for bench in ("decode", "prefill")]
        for i, name in enumerate(names):
            row = [shape if i == 0 else "", name]
            for run in runs:
                if not run:
                    row += ["-", "-"]
                    continue
                v = run[0]["groups"][0]["variants"]
                row += [spread_text(v[i]), f"{v[0]['step_mean_ms'] / v[i]['step_mean_ms']:.2f}"]
            if any(runs):
                rows.append(row)
    return table(["shape", "", "decode, ms", "speed", "prefill, ms", "speed"], rows) if rows else MISSING


def name_with_layers(result):
    return f"{result['shape']['name']}, {result['shape']['layers']} layers"


def importance_groups(results, suffix=""):
    """[(shape and layers, link, batch, {strategy: variant})]."""
    out = []
    for link in (16, 0):
        for shape in IMPORTANCE_SHAPES:
            for i, result in enumerate(repeats_of(results, f"{shape}-{link}{suffix}")):
                for group in result["groups"]:
                    out.append((name_with_layers(result) + ", again" * (i > 0), link, group["batch"],
                                {v["strategy"]: v for v in group["variants"] if counted(v)}))
    return sorted(out, key=lambda g: g[2])


def ms_hits(variant):
    return f"{variant['step_mean_ms']:.2f} ({100 * variant['hit_ratio']:.0f})"


def rival_name(spec):
    return spec.replace(":balancer=1", ", Algorithm 2")


def best_rival(known):
    return min((r for r in IMPORTANCE_RIVALS if r in known), key=lambda r: known[r]["step_mean_ms"])


def importance_tpot(results):
    rows = []
    for shape, link, batch, known in importance_groups(results):
        rivals = [r for r in IMPORTANCE_RIVALS if r in known]
        if OURS not in known or not rivals:
            continue
        ours, best = known[OURS], best_rival(known)
        most = max(rivals, key=lambda r: known[r]["hit_ratio"])
        less = [100 * (1 - 1 / r) for r in repetition_ratios(known[best], ours)]
        change = 100 * (1 - ours["step_mean_ms"] / known[best]["step_mean_ms"])
        rows.append([str(batch), link_name(link), shape] + [ms_hits(known[r]) if r in known else "-" for r in IMPORTANCE_RIVALS] +
                    [f"**{ours['step_mean_ms']:.2f}** ({100 * ours['model_hit_ratio']:.0f}, {100 * ours['hit_ratio']:.0f})",
                     f"{change:.0f} % ({min(less):.0f} .. {max(less):.0f}) than {rival_name(best)}",
                     f"{known[best]['step_p50_ms']:.2f}, {ours['step_p50_ms']:.2f}",
                     f"{100 * (ours['hit_ratio'] / known[most]['hit_ratio'] - 1):+.0f} % ({rival_name(most)})"])
    return table(["batch", "link", "shape"] + [rival_name(r) for r in IMPORTANCE_RIVALS] +
                 ["importance", "TPOT less", "medians", "hit ratio"], rows) if rows else MISSING


def importance_others(results):
    """With Algorithm 2, the documented alpha, the best rival with the fill."""
    names = {OURS: "importance", ALGORITHM2: "importance, Algorithm 2", "importance": "importance, alpha 0.1",
             FILLED_RIVAL: "hybrimoe-like with the fill"}
    rows = []
    for shape, link, batch, known in importance_groups(results):
        rows.append([str(batch), link_name(link), shape] +
                    [f"{spread_text(known[s])}" if s in known else "-" for s in names])
    return table(["batch", "link", "shape", *names.values()], rows) if rows else MISSING


def importance_waiting(results):
    """Where a step of ours goes, beside the best rival's."""
    rows = []
    for shape, link, batch, known in importance_groups(results):
        if OURS not in known:
            continue
        for spec in (best_rival(known), OURS):
            v, why = known[spec], known[spec]["stall_reasons_ms"]
            balance = v.get("balance_ms", {"load": 0, "cpu": 0})
            rows.append([str(batch), link_name(link), shape, rival_name(spec) if spec != OURS else "**importance**",
                         f"{v['step_mean_ms'] - v['stall_ms']:.2f}", f"{why['miss'] + why['queue']:.2f}", f"{why['cpu']:.2f}",
                         f"{100 * (v['cpu_computed'] or 0):.0f} %", f"{100 * (v['substituted'] or 0):.1f} %",
                         f"{v.get('fills', 0) / v['steps']:.1f}", f"{v['prefetch_issued'] / v['steps']:.1f}",
                         f"{1e-6 * v['bytes_loaded_a_step']:.0f}", f"{balance['load']:.2f}, {balance['cpu']:.2f}"])
    return table(["batch", "link", "shape", "", "not waiting, ms", "for the link", "for the CPU", "experts by the CPU",
                  "slots replaced", "fills per step", "prefetches", "MB per step", "T_load, T_cpu"], rows) if rows else MISSING


def importance_parts(results):
    """Mean over the shapes of TPOT, on-demand = 100."""
    columns = {}
    for shape, link, batch, known in importance_groups(results):
        if all(spec in known for _, spec in IMPORTANCE_PARTS):
            columns.setdefault((batch, link), []).append(
                [100 * known[spec]["step_mean_ms"] / known["on-demand"]["step_mean_ms"] for _, spec in IMPORTANCE_PARTS])
    if not columns:
        return MISSING
    rows = []
    for i, (name, _) in enumerate(IMPORTANCE_PARTS):
        row = [name]
        for shares in columns.values():
            now = mean(s[i] for s in shares)
            row.append(f"{now:.0f}" + (f" ({100 * (now / mean(s[i - 1] for s in shares) - 1):+.0f})" if i else ""))
        rows.append(row)
    return table([""] + [f"batch {b}, {link_name(l)}" for b, l in columns], rows)


def importance_prefill(results):
    rows = []
    for shape, link, _, known in importance_groups(results, "-prefill"):
        rivals = [s for s in known if not s.startswith("importance")]
        if OURS not in known or not rivals:
            continue
        best = min(rivals, key=lambda r: known[r]["step_mean_ms"])
        rows.append([link_name(link), shape] + [spread_text(known[n]) if n in known else "-" for n in IMPORTANCE_PREFILL] +
                    [f"{100 * (1 - known[OURS]['step_mean_ms'] / known[best]['step_mean_ms']):.0f} % than {best}"])
    return table(["link", "shape", "on-demand", "fate", "hybrimoe-like", "importance, Algorithm 2", "importance", "less"],
                 rows) if rows else MISSING


def importance_claims(results):
    def cells(batch=None):
        return [known for _, _, b, known in importance_groups(results) if batch in (None, b) and OURS in known]

    def less(known, rivals=IMPORTANCE_RIVALS, ours=OURS, field="step_mean_ms"):
        found = [known[r][field] for r in rivals if r in known]
        return 100 * (known[ours][field] / min(found) - 1) if found and ours in known else None

    def means(which):
        of = [[x for x in map(which, cells(b)) if x is not None] for b in (3, 1)]
        return ", ".join(f"{mean(x):+.0f} % ({len(x)})" if x else "-" for x in of)

    if not cells():
        return MISSING
    rows = [["TPOT against the best rival, batch 3, 1, mean (of so many cells)", "-35 %, -24 %", means(less)],
            ["... by the median step", "", means(lambda k: less(k, field="step_p50_ms"))],
            ["... at most", "-48 %", f"{min(less(k) for k in cells()):+.0f} %"],
            ["... least", "", f"{max(less(k) for k in cells()):+.0f} %"]]
    no_cpu = ["on-demand", "activation-path", "fate"]
    rows.append(["... against the best of those without a CPU, batch 3, 1", "", means(lambda k: less(k, no_cpu))])
    paper = [r for r in IMPORTANCE_RIVALS if r != "hybrimoe-like"]
    rows.append(["... both sides with Algorithm 2, batch 3, 1", "", means(lambda k: less(k, paper, ALGORITHM2))])
    rows.append(["... against the rivals with Algorithm 2, batch 3, 1", "", means(lambda k: less(k, paper))])
    if any(FILLED_RIVAL in k for k in cells()):
        rows.append(["... hybrimoe-like given the fill, too, batch 3, 1", "",
                     means(lambda k: less(k, IMPORTANCE_RIVALS + [FILLED_RIVAL]) if FILLED_RIVAL in k else None)])
    if any("importance" in k for k in cells()):
        rows.append(["... of `importance` as documented (alpha 0.1), batch 3, 1", "",
                     means(lambda k: less(k, ours="importance"))])
    for claim, paper, rivals in (
            ("hit ratio after substitution against the best rival's, relative", "at least +66 %", IMPORTANCE_RIVALS),
            ("... against the best that uses the CPU", "", [r for r in IMPORTANCE_RIVALS if r not in no_cpu])):
        gains = [100 * (k[OURS]["hit_ratio"] / max(k[r]["hit_ratio"] for r in rivals if r in k) - 1) for k in cells()]
        rows.append([claim, paper, f"{mean(gains):+.0f} % on average, {max(gains):+.0f} % at most"])
    rows.append(["hit ratio before, after substitution, least", "over 60 %",
                 f"{100 * min(k[OURS]['model_hit_ratio'] for k in cells()):.0f} %, {100 * min(k[OURS]['hit_ratio'] for k in cells()):.0f} %"])
    ttft = [[100 * (k[OURS]["step_mean_ms"] / min(v["step_mean_ms"] for s, v in k.items() if of(s)) - 1)
             for _, _, _, k in importance_groups(results, "-prefill") if OURS in k]
            for of in (lambda s: s == "fate", lambda s: not s.startswith("importance"))]
    if ttft[0]:
        rows.append(["TTFT against fate, the best rival, mean", "-23 %", f"{mean(ttft[0]):+.0f} %, {mean(ttft[1]):+.0f} %"])
    return table(["claim", "paper", "here"], rows)


def fate_tables(results):
    return {"fate-worst": fate_worst(results), "fate-decode": fate_times(results, "decode"),
            "fate-prefill": fate_times(results, "prefill"), "fate-ablation": fate_ablation(results),
            "fate-claims": fate_claims(results), "fate-host": fate_host(results)}


def importance_tables(results):
    return {"importance-tpot": importance_tpot(results), "importance-claims": importance_claims(results),
            "importance-waiting": importance_waiting(results), "importance-others": importance_others(results),
            "importance-parts": importance_parts(results), "importance-prefill": importance_prefill(results)}


# Queued copies of pinned memory on this machine, by themselves: 47.1 GB/s at 1 MiB, 53.0 at 4, 54.6 at 16, 55.3 at 64.
QUEUED_FIXED_NS, QUEUED_GBPS = 3300, 55.3


def loads(results):
    rows = []
    for result in repeats_of(results, "loads"):
        for v in result["groups"][0]["variants"]:
            if not counted(v):
                continue
            bytes_a_load = v["bytes_loaded_a_step"] * v["steps"] / v["loads"]
            queued = bytes_a_load / (QUEUED_FIXED_NS + bytes_a_load / QUEUED_GBPS)
            rates = sorted(v["bytes_loaded_a_step"] / ms / 1e6 for ms in v["repetition_ms"])
            rate = v["bytes_loaded_a_step"] / v["step_mean_ms"] / 1e6
            rows.append([v["strategy"].split("=")[1], f"{bytes_a_load / 2**20:.1f} MiB",
                         f"{v['loads'] / v['steps'] / result['shape']['layers']:.0f}",
                         f"{rate:.1f} ({rates[0]:.1f} .. {rates[-1]:.1f})", f"{queued:.1f}", f"{100 * rate / queued:.0f} %"])
    return table(["scheme", "record", "loads per layer", "GB/s of whole layer calls", "copies alone", ""], rows) if rows else MISSING


def stored_with(part, results):
    """What is stored, runs of the same key replaced, with their repetitions."""
    again = {key.split("/")[0] for key in results}
    for r in results.values():  # paths as of the repository's root
        for field in ("command", "profile"):
            if r.get(field):
                r[field] = re.sub(r"[^ ]*/profiles/", "profiles/", r[field])
    return {**{k: r for k, r in load(part).items() if k.split("/")[0] not in again}, **results}


def render(folder):
    """Writes the report, from what is stored once the results in `folder`, if any, are among it."""
    if folder:
        for part in PARTS:
            path = os.path.join(folder, part + ".json")
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    results = json.load(file)
                bench_strategies.dump(str(report.DATA / f"h200-{part}.json"), stored_with(part, results))
    d = load("dynaexq")
    tables = {"dynaexq-adapt": adaptation(d), "dynaexq-bounds": bounds(d), "dynaexq-offload": offload(d),
              "dynaexq-shift": shift(d), **fate_tables(load("fate")),
              **importance_tables(load("importance")), "loads": loads(load("loads"))}
    report.write("h200", tables)
