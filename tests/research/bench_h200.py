#!/usr/bin/env python3
"""Measures the strategies on a GPU at published shapes, and reports them: build/report/h200.md.

    bench_h200.py run --bin build/cuda/lab --out DIR [--part dynaexq,fate,importance,loads] [--smoke]
    bench_h200.py render --results DIR      copies DIR/*.json to docs/results/data/h200-*.json, reports
    bench_h200.py render                    writes the page from what is stored

`run` needs a device and an otherwise idle machine; --smoke takes a few layers and steps, to see that
everything works. Every run is one moert-bench command: its strategies take turns on the same steps.
With --counter PATH (tests/gpu/libmoert_driver_counter.so of the build) driver calls are counted below
the runtime. A run that is in DIR already is not repeated; --process 2 runs it once more and keeps both.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_strategies  # noqa: E402
import h200_page  # noqa: E402
from h200_runs import PARTS  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


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
            key = run["key"] if args.process == 1 else f"{run['key']}/{args.process}"
            if key in results or (args.only and not re.search(args.only, key)):
                continue
            if time.time() - begin > args.seconds:
                print(f"{part} {key}: no time left")
                continue
            started = time.time()
            try:
                result = execute(args, smoke(run) if args.smoke else run, env)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{part} {key}: {str(error)[-600:]}", flush=True)
                continue
            results[key] = result
            print(f"{part} {key} {time.time() - started:.1f}s", flush=True)
            for group in result["groups"]:
                print(f"  {group['budget']} batch {group['batch']}: " +
                      "; ".join(short_line(v) for v in group["variants"]), flush=True)
            bench_strategies.dump(path, results)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "render"])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/cuda/lab"))
    parser.add_argument("--counter", help="library to preload that counts driver calls")
    parser.add_argument("--profile", default=os.path.join(ROOT, "tests/research/profiles/h200.json"))
    parser.add_argument("--out")
    parser.add_argument("--part", default=",".join(PARTS))
    parser.add_argument("--only", help="runs whose key matches this regular expression")
    parser.add_argument("--process", type=int, default=1, help="which process of the same runs this is")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="begins no run after so many")
    parser.add_argument("--timeout", type=float, default=200, help="of one run, seconds")
    parser.add_argument("--results")
    args = parser.parse_args()
    if args.what == "run":
        run_all(args)
    else:
        h200_page.render(args.results)


if __name__ == "__main__":
    main()
