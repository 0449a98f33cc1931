#!/usr/bin/env python3
"""Measures the strategies on a GPU at published shapes, and writes docs/benchmarks-h200.md.

    bench_h200.py run --bin build/cuda/bin --out DIR [--part dynaexq,fate,importance] [--smoke]
    bench_h200.py render --results DIR      copies DIR/*.json to docs/benchmarks/h200-*.json, writes the page
    bench_h200.py render                    writes the page from what is stored

`run` needs a device and an otherwise idle machine; --smoke takes a few layers and steps, to see that
everything works. Every run is one moert-bench command: its strategies take turns on the same steps.
With --counter PATH (tests/gpu/libmoert_driver_counter.so of the build) driver calls are counted below
the runtime. A run that is in DIR already is not repeated.
"""
import argparse
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_strategies  # noqa: E402
from experiment import table  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DOCS = os.path.join(ROOT, "docs")
W4, W2, W8 = "w4a16_g128", "w2a16_g64_asym", "w8a16_g128"


def run_of(key, bench, shape, strategies, **flags):
    return {"key": key, "bench": bench, "shape": shape, "strategies": strategies, "flags": flags}


def dynaexq_runs():
    """What adaptation costs, its bounds, offloading at the same bytes (DynaExq)."""
    hi_lo = f"hi=bf16,lo={W4}"
    # Finds the hot experts in a few steps; the others begin with them.
    first = f"dynaexq:{hi_lo},spare=64,interval_ms=20"
    live, frozen = f"dynaexq:{hi_lo},hot=before", f"static-mixed:{hi_lo},hot=before"
    # No hysteresis and ten times the usual rate: about as many transitions as the pipeline takes.
    churn = f"dynaexq:{hi_lo},margin=0,noise=0,interval_ms=20,hot=before"
    low, high = f"resident:scheme={W4}@100%", "resident:scheme=bf16@100%"
    flags = {"schemes": f"bf16,{W4}", "budget": "45%", "warm": 128, "steps": 64, "repeats": 4}
    for batch in (1, 8, 32):
        at = dict(flags, batch=batch)
        yield run_of(f"adapt-{batch}", "decode", "qwen3-30b", [first, live, frozen, churn, low],
                     workload="steady", **at)
        yield run_of(f"bounds-{batch}", "decode", "qwen3-30b", [first, frozen, low, high], workload="steady",
                     **dict(at, graph=True, repeats=3))
        yield run_of(f"offload-{batch}", "decode", "qwen3-30b",
                     [f"dynaexq:{hi_lo}", f"never-stall:hi=bf16,lo={W4}", "on-demand:scheme=bf16",
                      "expertflow-like:scheme=bf16"],
                     workload="mixed", **dict(at, warm=32, steps=16, repeats=3))
    yield run_of("shift-8", "decode", "qwen3-30b", [first, live, frozen, low], workload="shift",
                 **dict(flags, batch=8, steps=96))
    yield run_of("timeline", "decode", "qwen3-30b", [first, live, frozen, churn, f"never-stall:hi=bf16,lo={W4}"],
                 workload="shift", layer_times=True, batch="8", **dict(flags, repeats=4))
    for prompt in (128, 512, 2048):
        yield run_of(f"ttft-{prompt}", "prefill", "qwen3-30b", [first, live, frozen, churn, low],
                     workload="steady", schemes=f"bf16,{W4}", budget="45%", prompt=prompt,
                     warm=48 if prompt == 128 else 24 if prompt == 512 else 10,
                     steps=8 if prompt < 2048 else 3, repeats=5)


def fate_runs():
    """Fate against its rivals, links paced, in decode and prefill."""
    s = f"scheme={W4}"
    mine = [f"fate:{s}", f"fate:{s},low={W2}", f"on-demand:{s}", f"activation-path:{s}",
            f"activation-path:{s}+fate.residency"]
    for shape, layers in (("qwen1.5-moe", 24), ("deepseek-v2-lite", 26)):
        for link in (0, 16, 4):
            n = layers // 2 if link == 4 else layers
            flags = {"schemes": f"{W4},{W2}", "workload": "mixed"}
            if link:
                flags["link_gbps"] = link
            decode = dict(flags, warm=48 if link == 4 else 128, steps=16, repeats=3 if link == 4 else 5)
            prefill = dict(flags, prompt=128, warm=1, steps=2, repeats=2 if link == 4 else 4)
            for bench, how in (("decode", decode), ("prefill", prefill)):
                name = f"{shape}-{link}-{bench}"
                yield run_of(name + "-25", bench, f"{shape}:{n}", mine + [f"load-on-demand:{s}"], budget="25%", **how)
                yield run_of(name, bench, f"{shape}:{n}", mine, budget="10%,40%,60%", **how)
                if link == 16:
                    # The same bytes: 25 % of the experts in bf16 are 97 % of them in w4.
                    chain = ["load-on-demand:scheme=bf16", "load-on-demand:scheme=bf16+fate.prefetch",
                             "fate:scheme=bf16", f"fate:{s}@97%", f"fate:{s},low={W2},miss_bits=low@97%"]
                    yield run_of(f"{shape}-ablation-{bench}", bench, f"{shape}:{n}", chain, budget="25%",
                                 **dict(how, schemes=f"bf16,{W4},{W2}", repeats=3))


def importance_runs():
    """Importance against its rivals, batch 1 and 3."""
    rivals = ["on-demand", "activation-path", "fate", "cpu-split", "hybrimoe-like"]
    mine = ["importance:alpha=0", "importance", "importance:alpha=0.3"]
    chain = ["on-demand+importance.residency", "on-demand+importance.residency+importance.routing:alpha=0.3",
             "importance:alpha=0.3,balancer=0"]
    for shape, scheme in (("qwen2-57b:14", W8), ("deepseek-moe-16b:14", "bf16"), ("xverse-moe:14", "bf16")):
        name = shape.split(":")[0]
        for link in (0, 16):
            flags = {"schemes": scheme, "workload": "mixed", "budget": "40%"}
            if link:
                flags["link_gbps"] = link
            yield run_of(f"{name}-{link}", "decode", shape, rivals + mine + chain, batch="1,3", warm=96,
                         steps=16, repeats=4, **flags)
            yield run_of(f"{name}-{link}-prefill", "prefill", shape,
                         ["on-demand", "fate", "hybrimoe-like", "importance"], prompt=128, warm=1, steps=2,
                         repeats=3, **flags)


PARTS = {"dynaexq": dynaexq_runs, "fate": fate_runs, "importance": importance_runs}


def smoke(run):
    """The same with four layers and a few steps."""
    flags = dict(run["flags"], warm=min(run["flags"]["warm"], 16), steps=min(run["flags"]["steps"], 8),
                 repeats=2)
    return dict(run, shape=run["shape"].split(":")[0] + ":4", flags=flags)


def command_of(args, run):
    command = [os.path.join(args.bin, "moert-bench"), run["bench"], "--backend", "cuda", "--synthetic",
               run["shape"], "--strategy", ";".join(run["strategies"]), "--profile", args.profile, "--seed", "1"]
    for flag, value in run["flags"].items():
        command += [f"--{flag.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return command + ["--quiet", "--json", "-"]


def execute(args, run, env):
    command = command_of(args, run)
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                         timeout=args.timeout)
    if out.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {out.returncode}\n{out.stderr}")
    return json.loads(out.stdout)


def short_line(variant):
    name = variant["strategy"].split(":")[0]
    if "refused" in variant:
        return f"{name} refused: {variant['refused'][:100]}"
    host = variant["host"] or {}
    return (f"{name} {variant['step_mean_ms']:.3f}ms stall {variant['stall_ms']:.2f} hits "
            f"{100 * variant['hit_ratio']:.0f}% host {host.get('busy_us_a_layer', 0):.0f}us")


def run_all(args):
    env = dict(os.environ)
    if args.counter:
        env["LD_PRELOAD"] = args.counter
    os.makedirs(args.out, exist_ok=True)
    begin = time.time()
    for part in args.part.split(","):
        path = os.path.join(args.out, part + ".json")
        results = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                results = json.load(file)
        for run in PARTS[part]():
            if run["key"] in results or (args.only and args.only not in run["key"]):
                continue
            if time.time() - begin > args.seconds:
                print(f"{part} {run['key']}: no time left")
                continue
            started = time.time()
            try:
                result = execute(args, smoke(run) if args.smoke else run, env)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{part} {run['key']}: {str(error)[-600:]}", flush=True)
                continue
            results[run["key"]] = result
            print(f"{part} {run['key']} {time.time() - started:.1f}s", flush=True)
            for group in result["groups"]:
                print(f"  {group['budget']} batch {group['batch']}: " +
                      "; ".join(short_line(v) for v in group["variants"]), flush=True)
            bench_strategies.dump(path, results)


# The page. Keys of runs that were repeated in processes of their own end in "/2", "/3".

def load(part):
    path = os.path.join(DOCS, "benchmarks", f"h200-{part}.json")
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
                         f"{max(v[i]['host']['driver_waits_a_step'] for v in runs):.0f}"])
    for prompt in (128, 512, 2048):
        runs = [variants(r) for r in repeats_of(results, f"ttft-{prompt}")]
        if runs:
            churned.append([str(prompt)] + [f"{mean(v[i]['step_mean_ms'] for v in runs):.2f}" for i in (4, 2, 1, 3)] +
                           [ratio_text([(v[i]["step_mean_ms"], v[2]["step_mean_ms"]) for v in runs])
                            for i in (1, 3)])
    text = table(["batch", "transitions", "promotions a step", "frozen, ms", "on, ms", "mean", "P99",
                  "driver waits"], rows)
    if churned:
        text += "\n\nTTFT in ms, one prompt at a time:\n\n" + table(
            ["prompt", "all low", "frozen", "on, defaults", "on, no hysteresis", "defaults", "no hysteresis"], churned)
    return text


def bounds(results):
    rows = []
    for batch in (1, 8, 32):
        runs = [variants(r) for r in repeats_of(results, f"bounds-{batch}")]
        if runs:
            rows.append([str(batch)] + [f"{mean(v[i]['step_mean_ms'] for v in runs):.2f}" for i in (2, 1, 0, 3)])
    return table(["batch", "all w4", "26 % bf16, static", "the same, `dynaexq`", "all bf16"], rows)


def offload(results):
    rows = []
    for result in repeats_of(results, "offload"):
        for group in result["groups"]:
            v = group["variants"]
            rows.append([str(group["batch"])] + [f"{x['step_mean_ms']:.2f}" for x in v] +
                        [f"{v[i]['step_mean_ms'] / v[0]['step_mean_ms']:.1f}x" for i in (2, 3)] +
                        [f"{100 * v[2]['hit_ratio']:.0f} %"])
    return table(["batch", "dynaexq, ms", "never-stall", "on-demand", "expertflow-like",
                  "over on-demand", "over expertflow-like", "on-demand hits"], rows)


def name_of(spec):
    for scheme in (W4, W2, W8, "bf16"):
        spec = spec.replace(f":scheme={scheme},", ":").replace(f":scheme={scheme}", "")
    return "`" + spec.replace("_asym", "") + "`"


def cells(results, keys):
    rows = []
    for key in keys:
        for result in repeats_of(results, key):
            for group in result["groups"]:
                first = group["variants"][0]
                for v in group["variants"]:
                    spread = f"{v['step_mean_ms']:.2f} ({v['step_ms']['min']:.2f} .. {v['step_ms']['max']:.2f})"
                    busy = (v["host"] or {}).get("busy_us_a_layer")
                    rows.append([group["budget"], str(group["batch"]), name_of(v["strategy"]), spread,
                                 f"{v['stall_ms']:.2f}", f"{100 * v['hit_ratio']:.0f} %",
                                 f"{v['step_mean_ms'] / first['step_mean_ms']:.2f}",
                                 "-" if busy is None or result["link_gbps"] else f"{busy:.0f}"])
    return table(["budget", "batch", "strategy", "ms a step", "of it waiting", "hits", "over the first",
                  "host, us a layer"], rows)


def render(args):
    if args.results:
        for part in PARTS:
            path = os.path.join(args.results, part + ".json")
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    results = json.load(file)
                bench_strategies.dump(os.path.join(DOCS, "benchmarks", f"h200-{part}.json"), results)
    d, f = load("dynaexq"), load("fate")
    tables = {"dynaexq-adapt": adaptation(d), "dynaexq-bounds": bounds(d), "dynaexq-offload": offload(d),
              "dynaexq-shift": cells(d, ["shift-8"]), "fate-full": cells(f, ["qwen1.5-moe-0-decode-25"]),
              "fate-before": cells(f, ["before"]),
              "fate-decode": cells(f, ["qwen1.5-moe-16-decode", "qwen1.5-moe-16-decode-25"]),
              "fate-prefill": cells(f, ["qwen1.5-moe-16-prefill", "qwen1.5-moe-16-prefill-25"]),
              "fate-ablation": cells(f, ["qwen1.5-moe-ablation-decode", "qwen1.5-moe-ablation-prefill"])}
    path = os.path.join(DOCS, "benchmarks-h200.md")
    with open(path, encoding="utf-8") as file:
        page = file.read()
    for name, text in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, rest = page.split(begin, 1)
        page = before + begin + text.rstrip("\n") + "\n" + end + rest.split(end, 1)[1]
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "render"])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/cuda/bin"))
    parser.add_argument("--counter", help="library to preload that counts driver calls")
    parser.add_argument("--profile", default=os.path.join(ROOT, "profiles/h200.json"))
    parser.add_argument("--out")
    parser.add_argument("--part", default=",".join(PARTS))
    parser.add_argument("--only", help="runs whose key contains this")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="begins no run after so many")
    parser.add_argument("--timeout", type=float, default=120, help="of one run, seconds")
    parser.add_argument("--results")
    args = parser.parse_args()
    if args.what == "run":
        run_all(args)
    else:
        render(args)


if __name__ == "__main__":
    main()
