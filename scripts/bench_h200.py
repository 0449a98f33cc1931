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

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
W4, W2, W8 = "w4a16_g128", "w2a16_g64_asym", "w8a16_g128"
PROFILE = os.path.join(ROOT, "profiles/h200.json")


def run_of(key, bench, shape, strategies, **flags):
    return {"key": key, "bench": bench, "shape": shape, "strategies": strategies, "flags": flags}


def dynaexq_runs():
    """Issue: what adaptation costs, bounds, offloading at the same bytes."""
    hi_lo = f"hi=bf16,lo={W4}"
    live = f"dynaexq:{hi_lo}"
    churn = f"dynaexq:{hi_lo},margin=0,noise=0,interval_ms=20"
    low, high = f"resident:scheme={W4}@26%", "resident:scheme=bf16@100%"
    flags = {"schemes": f"bf16,{W4}", "budget": "45%", "warm": 96, "steps": 64, "repeats": 5}
    for batch in (1, 8, 32):
        at = dict(flags, batch=batch)
        yield run_of(f"adapt-{batch}", "decode", "qwen3-30b", [live, "frozen", churn, "frozen", low],
                     workload="steady", **at)
        yield run_of(f"shift-{batch}", "decode", "qwen3-30b", [live, "frozen", low],
                     workload="shift", **dict(at, warm=224))
        yield run_of(f"bounds-{batch}", "decode", "qwen3-30b", [low, live, "frozen", high], workload="steady",
                     graph=True, **at)
        yield run_of(f"offload-{batch}", "decode", "qwen3-30b",
                     [live, f"never-stall:hi=bf16,lo={W4}", "on-demand:scheme=bf16", "expertflow-like:scheme=bf16"],
                     workload="mixed", **dict(at, warm=48, steps=16))
    for prompt in (128, 512, 2048):
        yield run_of(f"ttft-{prompt}", "prefill", "qwen3-30b", [live, "frozen", churn, "frozen", low],
                     workload="steady", schemes=f"bf16,{W4}", budget="45%", prompt=prompt, warm=4,
                     steps=8 if prompt < 2048 else 4, repeats=5)


def fate_runs():
    """Issue: fate against its rivals, links paced, in decode and prefill."""
    s = f"scheme={W4}"
    ours = [f"fate:{s}", f"fate:{s},low={W2}"]
    rivals = [f"on-demand:{s}", f"activation-path:{s}", f"activation-path:{s}+fate.residency"]
    for shape, layers in (("qwen1.5-moe", 24), ("deepseek-v2-lite", 26)):
        for link in (4, 16, 0):
            n = layers // 2 if link == 4 else layers
            flags = {"schemes": f"bf16,{W4},{W2}", "workload": "mixed"}
            if link:
                flags["link_gbps"] = link
            for budget in ("10%", "25%", "40%", "60%"):
                lod = [f"load-on-demand:{s}"] if budget == "25%" else []
                yield run_of(f"{shape}-{link}-{budget[:-1]}", "decode", f"{shape}:{n}", ours + rivals + lod,
                             budget=budget, warm=64 if link == 4 else 128, steps=16, repeats=4, **flags)
                yield run_of(f"{shape}-{link}-{budget[:-1]}-prefill", "prefill", f"{shape}:{n}",
                             ours + rivals + lod, budget=budget, prompt=128, warm=2, steps=2, repeats=2, **flags)
            if link == 16:
                chain = ["load-on-demand:scheme=bf16", "load-on-demand:scheme=bf16+fate.prefetch",
                         "fate:scheme=bf16", f"fate:{s}@BYTES", f"fate:{s},low={W2},miss_bits=low@BYTES"]
                yield run_of(f"{shape}-ablation", "decode", f"{shape}:{n}", chain, budget="25%", warm=64,
                             steps=16, repeats=4, **flags)
                yield run_of(f"{shape}-ablation-prefill", "prefill", f"{shape}:{n}", chain, budget="25%",
                             prompt=128, warm=2, steps=2, repeats=2, **flags)


def importance_runs():
    """Issue: importance against its rivals, batch 1 and 3."""
    rivals = ["on-demand", "activation-path", "fate", "cpu-split", "hybrimoe-like"]
    ours = ["importance:alpha=0", "importance", "importance:alpha=0.3"]
    chain = ["on-demand", "on-demand+importance.residency",
             "on-demand+importance.residency+importance.routing:alpha=0.3", "importance:alpha=0.3,balancer=0",
             "importance:alpha=0.3"]
    for shape, scheme in (("qwen2-57b:14", W8), ("deepseek-moe-16b:14", "bf16"), ("xverse-moe:14", "bf16")):
        name = shape.split(":")[0]
        for link in (16, 0):
            flags = {"schemes": scheme, "workload": "mixed", "budget": "40%"}
            if link:
                flags["link_gbps"] = link
            for batch in (1, 3):
                yield run_of(f"{name}-{link}-{batch}", "decode", shape, rivals + ours, batch=batch, warm=96,
                             steps=16, repeats=4, **flags)
                yield run_of(f"{name}-{link}-{batch}-ablation", "decode", shape, chain, batch=batch, warm=96,
                             steps=16, repeats=4, **flags)
            yield run_of(f"{name}-{link}-prefill", "prefill", shape,
                         ["on-demand", "fate", "hybrimoe-like", "importance"], prompt=128, warm=2, steps=2,
                         repeats=2, **flags)


PARTS = {"dynaexq": dynaexq_runs, "fate": fate_runs, "importance": importance_runs}


def smoke(run):
    """The same with four layers and a few steps."""
    shape = run["shape"].split(":")[0] + ":4"
    flags = dict(run["flags"], warm=min(run["flags"]["warm"], 16), steps=min(run["flags"]["steps"], 8),
                 repeats=2)
    return dict(run, shape=shape, flags=flags)


def command_of(args, run, fixed_bytes):
    strategies = ";".join(s.replace("@BYTES", f"@{fixed_bytes}") for s in run["strategies"])
    command = [os.path.join(args.bin, "moert-bench"), run["bench"], "--backend", "cuda", "--synthetic",
               run["shape"], "--strategy", strategies, "--profile", PROFILE, "--seed", "1"]
    for flag, value in run["flags"].items():
        command += [f"--{flag.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return command + ["--quiet", "--json", "-"]


def measure(args, run, env):
    fixed_bytes = 0
    if any("@BYTES" in s for s in run["strategies"]):
        # As many bytes as the share of the best version comes to: what another run's variant was given.
        probe = dict(run, strategies=[run["strategies"][-3]],
                     flags=dict(run["flags"], warm=0, steps=1, repeats=1))
        fixed_bytes = execute(args, probe, 0, env)["groups"][0]["variants"][0]["budget_bytes"]
    return execute(args, run, fixed_bytes, env)


def execute(args, run, fixed_bytes, env):
    command = command_of(args, run, fixed_bytes)
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                         timeout=args.timeout)
    if out.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {out.returncode}\n{out.stderr}")
    return json.loads(out.stdout)


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
                result = measure(args, smoke(run) if args.smoke else run, env)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{part} {run['key']}: {str(error)[-600:]}", flush=True)
                continue
            results[run["key"]] = result
            line = "  ".join(
                f"{v['strategy'].split(':')[0]}{'' if 'refused' in v else ' %.3f/%.0f%%/%.0fus' % (v['step_mean_ms'], 100 * v['hit_ratio'], (v['host'] or {}).get('busy_us_a_layer', 0))}"
                for v in result["groups"][0]["variants"])
            print(f"{part} {run['key']} {time.time() - started:.1f}s: {line}", flush=True)
            bench_strategies.dump(path, results)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "render"])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/cuda/bin"))
    parser.add_argument("--counter", help="library to preload that counts driver calls")
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


if __name__ == "__main__":
    main()
