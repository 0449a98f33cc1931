"""Reports of the strategies on a CPU, of moert-sim's predictions and of the GPU's grouped product.

    python3 tests/research/benchmarks.py                   build/report/benchmarks.md, from docs/results/data
    python3 tests/research/benchmarks.py --gemm FILE...    first stores what `moert-bench gemm --backend cuda
                                                           --json FILE` wrote, in place of what was stored

The strategies' results are made by tests/research/bench_strategies.py.
"""
import argparse
import json
import re

import plot
import report

def load(name):
    return json.loads((report.DATA / f"{name}.json").read_text(encoding="utf-8"))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def percent(x, digits=1):
    return "-" if x is None else f"{100 * x:.{digits}f} %"


def variants_of(wall, budget):
    return [v for v in wall["variants"] if v["budget"] == budget]


def wall_section(wall):
    machine = wall["machine"]
    budgets = sorted({v["budget"] for v in wall["variants"]} - {"100%"})
    newer = {}
    for v in wall["variants"]:
        if "commit" in v:
            newer.setdefault(v["commit"], []).append(f"`{v['strategy']}`")
    again = "".join(f" {', '.join(dict.fromkeys(names))}: commit `{commit}`, on a machine of the same kind."
                    for commit, names in newer.items())
    text = f"""## Built-in strategies, CPU backend, wall clock

{machine['cpu']}, {machine['cpus']} CPUs, 8 compute threads and 2 readers, otherwise idle; commit `{wall['commit']}`, seed {wall['seed']}.{again}
Synthetic experts at the shape of Qwen3-30B-A3B, three layers, workload `mixed` (docs/results/workloads.md), two requests side by side,
300 us of emulated attention before every layer, transfers paced to 4 GB/s (2.4 ms an expert). Every variant alone in its process: {wall['warm_steps']} steps of
warm-up, then {wall['repeats']} repetitions of {wall['steps']} steps, the same for all. ms a step: mean, in brackets the least and greatest repetition, which are
different steps. `dynaexq` and `never-stall` never wait; their hits are lookups answered in the version meant for them, which caches' bounds do
not limit. Bounds in hindsight: what caches that know the future would hit, one a layer or one for all, and the step if their misses were
known a layer ahead.

    tests/research/bench_strategies.py wall --bin build/dev/lab --profile tests/research/profiles/xeon-8-threads.json --out docs/results/data/wall.json

"""
    rows = []
    for budget in budgets + ["100%"]:
        for v in variants_of(wall, budget):
            o = v["oracles"]
            spread = f"{v['step_mean_ms']:.2f} ({v['step_ms']['min']:.2f} .. {v['step_ms']['max']:.2f})"
            lossy = "" if v["exact"] else " (lossy)"
            rows.append([budget, f"`{v['strategy']}`{lossy}", spread, f"{v['stall_ms']:.2f}",
                         percent(v["hit_ratio"]), percent(o["belady_layer"]),
                         percent(o["belady_global"]), f"{o['perfect_prefetch_belady_ms']:.2f}"])
    text += table(["budget", "strategy", "ms a step", "of it waiting", "hits", "Belady, a layer",
                   "Belady, all", "perfect prefetch, ms"], rows)
    names = [v["strategy"] for v in variants_of(wall, budgets[len(budgets) // 2])]
    names = [n for n in names if n not in ("load-on-demand", "cpu-split")]
    bars = []
    for budget in budgets:
        known = {v["strategy"]: v for v in variants_of(wall, budget)}
        bars.append(plot.Bars(budget, [known[n]["step_mean_ms"] if n in known else None for n in names],
                              [(known[n]["step_ms"]["max"] - known[n]["step_ms"]["min"]) / 2
                               if n in known else None for n in names]))
    plot.save(report.image("bench-wall"),
              [plot.Panel("Time of a decode step", "", "ms", bars, categories=names)],
              panel_width=760, panel_height=240)
    return text + "\n" + plot.picture("images/bench-wall", "time of a step by strategy and budget") + "\n"


def accuracy_section(predicted):
    rows, inside, exact_hits = [], 0, 0
    for r in predicted["rows"]:
        error = r["predicted_ms"] / r["measured_ms"] - 1
        inside += abs(error) <= 0.1
        points = 100 * (r["predicted_hits"] - r["measured_hits"])
        exact_hits += abs(points) <= 1
        rows.append([r["budget"], f"`{r['strategy']}`", f"{r['measured_ms']:.2f}",
                     f"{r['predicted_ms']:.2f}", f"{100 * error:+.1f} %",
                     percent(r["measured_hits"]), percent(r["predicted_hits"])])
    outside = sorted({r["strategy"] for r in predicted["rows"]
                      if abs(r["predicted_ms"] / r["measured_ms"] - 1) > 0.1})
    total = len(rows)
    text = f"""
### What moert-sim predicts of these runs

`moert-sim` replays the same steps on a virtual clock with the profile that `moert-bench probe` measured on the machine just before
(`tests/research/profiles/xeon-8-threads.json`). Which costs the model has was settled on these runs and earlier ones, their values are the probe's. {inside} of {total} step times are within 10 % and {exact_hits} of {total} hit
ratios within one point. Outside 10 %: {', '.join(f'`{n}`' for n in outside) if outside else 'none'}.

    tests/research/bench_strategies.py predict --profile tests/research/profiles/xeon-8-threads.json --wall docs/results/data/wall.json --out docs/results/data/predicted.json

"""
    text += table(["budget", "strategy", "ms, measured", "predicted", "error", "hits, measured",
                   "predicted"], rows)
    return text + """
What it took: weights several times the last cache in the probe (this machine's 300 MiB made products 20 % too fast); a link of
several streams, since one reader alone does not reach the rate of two; what it costs to wake a sleeping pool (0.15 ms here) and
the thread that waits (0.16 ms) after every miss; the next gate's time for strategies that run it; rates of each version.
What it does not know: first writes to fresh memory. Until a cache is full a load takes 1 ms more for page faults, and predictions were up to a
third too short; the runs above begin with full caches. `never-stall` and `fate` decide by times: a transfer of 2.4 ms either fits the step or the
window of about that length or does not, so a small error of time becomes one of decisions. Where other strategies' engines take turns in
one process (`--strategy 'a;b'`), those that move experts by time get the others' turns too.
"""


def shapes_section(shapes):
    rows = []
    names = []
    for r in shapes["rows"]:
        if r["shape"] not in names:
            names.append(r["shape"])
        o = r["oracles"]
        rows.append([r["shape"].split(":")[0], f"`{r['strategy']}`", r["budget"],
                     f"{r['step_ms']['mean']:.2f}", f"{r['step_ms']['p99']:.2f}",
                     f"{r['stall_ms']:.2f}", percent(r["hit_ratio"]), percent(o["belady_layer"]),
                     percent(o["belady_global"]), percent(o["high_set"])])
    strategies = []
    for r in shapes["rows"]:
        if r["strategy"] not in strategies and r["strategy"] not in ("resident", "load-on-demand"):
            strategies.append(r["strategy"])
    known = {(r["shape"], r["strategy"]): r for r in shapes["rows"]}
    bars = [plot.Bars(shape.split(":")[0],
                      [100 * known[shape, s]["hit_ratio"] if (shape, s) in known else None
                       for s in strategies]) for shape in names]
    plot.save(report.image("bench-shapes"),
              [plot.Panel("Hit ratio at 40 %", "", "%", bars, categories=strategies)],
              panel_width=840, panel_height=240)
    text = f"""
## Four shapes, replayed

`moert-sim` on workload `mixed`, one request, six layers of each shape, {shapes['warm_steps']} steps of warm-up and {shapes['steps']} counted, seed 1, the same profile,
4 GB/s, 300 us of attention a layer: the same bits on every machine. Experts of other shapes are charged by their bytes. Versions bf16, w4a16_g128,
w2a16_g64_asym. The last column is the share of tokens that the best fixed set of as many experts would answer.

How long it takes: 60 layers of 256 experts (`deepseek-v3:60`), 10,000 tokens, budget 40 %, take 1.8 to 12.7 s a strategy (AMD EPYC, one
thread, wall clock; `fate` the most).

    tests/research/bench_strategies.py shapes --profile tests/research/profiles/xeon-8-threads.json --out docs/results/data/shapes.json

"""
    text += table(["shape", "strategy", "budget", "ms a step", "p99", "of it waiting", "hits",
                   "Belady, a layer", "Belady, all", "best fixed set"], rows)
    return text + "\n" + plot.picture("images/bench-shapes", "hit ratio by strategy and shape") + "\n"


def bundled_section(bundled):
    rows = []
    for r in bundled["rows"]:
        o = r["oracles"]
        rows.append([f"`{r['strategy']}`", percent(r["real_hits"]), percent(r["replayed_hits"]),
                     f"{r['real_ms']:.2f}", f"{r['replayed_ms']:.2f}", percent(o["belady_layer"]),
                     percent(o["belady_global"])])
    return """
## The bundled model: real runs and replays

`moert-run ppl --step-tokens 1` on the first window of gsm8k (512 tokens, from a cold cache) against `moert-sim` on the routing that was
recorded there in fp32; budget 40 % (`resident`: 100 %), 0.5 GB/s, virtual clock with profile `reference`. Exact strategies differ by what bf16 rounds;
`importance` changes the hidden states of later layers, which a replay cannot follow. `tests/parity/ranking_cli_test.cc` holds the order.

    tests/research/bench_strategies.py bundled --out docs/results/data/bundled.json

""" + table(["strategy", "hits, real", "replayed", "ms a step, real", "replayed", "Belady, a layer",
             "Belady, all"], rows)


# Goals: weight bytes a second as percent of the copy rate, by shape, scheme and tokens.
GEMM_GOALS = {("qwen3-30b", "bf16"): {8: 85, 32: 85}, ("qwen3-30b", "w8a16_g128"): {8: 72, 32: 78},
              ("qwen3-30b", "w4a16_g128"): {8: 60, 32: 68}, ("qwen3-30b", "w2a16_g64_asym"): {8: 45, 32: 54},
              ("mixtral", "w4a16_g128"): {8: 73, 32: 73}}
FEW_TOKENS = 128  # below it weights are what takes the time


def store_gemm(paths):
    runs = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
        run["command"] = re.sub(r" --json \S+", "", run["command"])
        runs.append(run)
    (report.DATA / "gemm-h200.json").write_text(
        json.dumps({"runs": runs}, separators=(",", ":")) + "\n", encoding="utf-8")


def gemm_section(stored):
    runs = stored["runs"]
    rows = [r for run in runs for r in run["results"]]
    known = {(r["shape"], r["scheme"], r["tokens"], r["zipf"]): r for r in rows}
    kinds = list(dict.fromkeys((r["shape"], r["scheme"]) for r in rows))
    shapes = list(dict.fromkeys(shape for shape, _ in kinds))
    kinds.sort(key=lambda kind: shapes.index(kind[0]))
    few = sorted({r["tokens"] for r in rows if r["tokens"] < FEW_TOKENS})
    many = sorted({r["tokens"] for r in rows} - set(few))
    zipfs = sorted({r["zipf"] for r in rows})
    machine = runs[0]["machine"]
    copies = [run["copy_gbps"]["median"] for run in runs]

    def cell(kind, tokens, text):
        found = [known[(*kind, tokens, z)] for z in zipfs if (*kind, tokens, z) in known]
        return " / ".join(text(r) for r in found) or "-"

    def grid(tokens, text, goals=False):
        out = []
        for kind in kinds:
            cells = [cell(kind, t, text) for t in tokens]
            if all(c == "-" for c in cells):
                continue
            goal = GEMM_GOALS.get(kind, {})
            out.append([*kind] + ([" / ".join(f"{goal[t]} %" for t in sorted(goal))] if goals else []) + cells)
        return table(["shape", "scheme"] + (["goal"] if goals else []) + [f"T = {t}" for t in tokens], out)

    uniform = [(100 * known[(*kind, t, zipfs[0])]["of_copy"], g) for kind, goal in GEMM_GOALS.items()
               for t, g in goal.items() if (*kind, t, zipfs[0]) in known]
    reached = sum(round(have) >= g for have, g in uniform)
    spread = sorted((r["gemms_us"]["max"] - r["gemms_us"]["min"]) / r["gemms_us"]["median"] for r in rows)
    commits = ", ".join(f"`{c}`" for c in dict.fromkeys(run["commit"] for run in runs))
    text = f"""One {machine['device'].replace('NVIDIA ', '')}, CUDA {machine['cuda_runtime']}, driver 580.159.04, commit as built {commits}. GEMMs: gate, up and down of every expert that has tokens, in a
CUDA graph; {runs[0]['layers']} copies of the layer rotated so that L2 does not hold the weights; bytes are those of the records multiplied. Copies within the
device, measured between: {min(copies) / 1e3:.2f} to {max(copies) / 1e3:.2f} TB/s, read and written. Medians of {min(run['repeats'] for run in runs)} to {max(run['repeats'] for run in runs)} replays; least to greatest {100 * spread[len(spread) // 2]:.1f} % in
the median cell, {100 * spread[-1]:.1f} % at most.

"""
    text += "".join(f"    {run['command']}\n" for run in runs) + "    python3 tests/research/benchmarks.py --gemm FILE...\n"
    text += f"""
Weights a second as a share of the copy rate, routed uniformly / by Zipf with exponent 0.8. Goals are for T = 8 / 32; {reached} of {len(uniform)} are reached, routed uniformly.

"""
    text += grid(few, lambda r: f"{100 * r['of_copy']:.0f} %", goals=True)
    if many:
        text += "\nTFLOP/s, where arithmetic begins to count:\n\n" + grid(many, lambda r: f"{r['tflops']:.0f}")
    text += "\nMicroseconds of the GEMMs, in brackets of the whole layer (routing, grouping, packing, products, weighted sum):\n\n"
    times = lambda r: f"{r['gemms_us']['median']:.0f} ({r['layer_us']['median']:.0f})"
    text += grid(few, times)
    if many:
        text += "\n" + grid(many, times)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemm", nargs="+", metavar="FILE")
    args = parser.parse_args()
    if args.gemm:
        store_gemm(args.gemm)
    sections = [wall_section(load("wall")), accuracy_section(load("predicted")),
                shapes_section(load("shapes")), bundled_section(load("bundled")),
                "## Grouped products on the GPU\n\n" + gemm_section(load("gemm-h200"))]
    report.write("benchmarks", "\n".join(s.strip("\n") + "\n" for s in sections))


if __name__ == "__main__":
    main()
