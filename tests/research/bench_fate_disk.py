#!/usr/bin/env python3
"""Measures fate on the wall clock, CPU backend, experts on a disk: build/report/fate-disk.md.

    bench_fate_disk.py run --bin build/dev/bin --out FILE --dir DIR [--threads N] [--small]
    bench_fate_disk.py render [--results FILE]

`run` wants an otherwise idle machine and a folder on the disk to measure (2 GB free). Records are read
with O_DIRECT, so the page cache does not answer; beside the disk as it is, it is paced to 1 GB/s, and
memory to 4 GB/s. In every run the strategies take turns on the same steps. Runs that FILE has are not
repeated; what tells most comes first, so that it may be stopped at any time. `render` stores the
results as docs/results/data/fate-disk.json and reports.
"""
import argparse
import json
import os
import subprocess
import time

import bench_h200
import bench_strategies
import h200_page
import report
from experiment import table

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
STORED = str(report.DATA / "fate-disk.json")
SHAPE, SCHEME = "qwen1.5-moe:4", "w4a16_g128"
STRATEGIES = ["fate", "on-demand", "activation-path", "activation-path+fate.residency"]
SOURCES = {"disk": (True, 0), "disk, 1 GB/s": (True, 1), "memory, 4 GB/s": (False, 4)}


def runs(args):
    for budgets, more in (("25%", ["load-on-demand"]), ("10%,40%,60%", [])):
        for bench in ("decode", "prefill"):
            for source, (on_disk, gbps) in SOURCES.items():
                command = [os.path.join(args.bin, "moert-bench"), bench, "--backend", "cpu", "--synthetic", SHAPE,
                           "--schemes", SCHEME, "--workload", "mixed", "--seed", "1", "--budget", budgets,
                           "--strategy", ";".join(STRATEGIES + more), "--threads", str(args.threads),
                           "--io-threads", "2", "--link-gbps", str(gbps), "--quiet", "--json", "-"]
                command += ["--dir", args.dir] if on_disk else []
                how = {"warm": 64, "steps": 12, "repeats": 8}
                if bench == "prefill":
                    how = {"prompt": 128, "warm": 1, "steps": 1, "repeats": 3}
                if args.small:
                    how = dict(how, warm=1, steps=1, repeats=2)
                    command[command.index(SHAPE)] = SHAPE.split(":")[0] + ":2"
                command += [x for flag, n in how.items() for x in (f"--{flag}", str(n))]
                yield f"{bench} {source} {budgets}", command


def run_all(args):
    results = {}
    if os.path.exists(args.out):
        with open(args.out, encoding="utf-8") as file:
            results = json.load(file)
    for key, command in runs(args):
        if key in results or args.only not in key:
            continue
        begin = time.time()
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if out.returncode != 0:
            print(f"{key}: exit {out.returncode}\n{out.stderr[-500:]}", flush=True)
            continue
        results[key] = json.loads(out.stdout)
        bench_strategies.dump(args.out, results)
        print(f"{key} {time.time() - begin:.1f}s", flush=True)
        for group in results[key]["groups"]:
            print(f"  {group['budget']} transfer {group['transfer_ms']:.2f} ms layer {group['layer_ms']:.2f} ms: " +
                  "; ".join(bench_h200.short_line(v) for v in group["variants"]), flush=True)


def part(results, bench):
    rows, worst = [], []
    rivals = ["load-on-demand", *STRATEGIES[1:]]
    for source in SOURCES:
        groups = [g for budgets in ("25%", "10%,40%,60%")
                  for g in results.get(f"{bench} {source} {budgets}", {"groups": []})["groups"]]
        for group in sorted(groups, key=lambda g: float(g["budget"].rstrip("%"))):
            known = {v["strategy"]: v for v in group["variants"] if h200_page.counted(v)}
            if "fate" not in known:
                continue
            mine = known["fate"]
            rows.append([source, f"{group['transfer_ms']:.2f}", f"{group['layer_ms']:.2f}", group["budget"],
                         h200_page.spread_text(mine), f"{mine['stall_ms']:.1f}", f"{100 * mine['hit_ratio']:.0f} %"] +
                        [h200_page.over_text(known[r], mine) if r in known else "-" for r in rivals])
            worst += [(known[r]["step_mean_ms"] / mine["step_mean_ms"], f"{source}, {group['budget']}, against {r}")
                      for r in rivals if r in known]
    if not rows:
        return "Not measured yet."
    least = min(worst)
    below = sum(ratio < 0.97 for ratio, _ in worst)
    return table(["experts from", "a transfer, ms", "a layer, ms", "budget", "fate, ms", "of it waiting", "hits",
                  "load-on-demand", "on-demand", "activation-path", "activation-path, fate's cache"], rows) + (
        f"\n\nWorst of {len(worst)} ratios: {least[0]:.3f} ({least[1]}); {below} below 0.97.")


def render(args):
    results = {}
    if args.results:
        for path in [STORED] * os.path.exists(STORED) + [args.results]:  # runs of the same name are replaced
            with open(path, encoding="utf-8") as file:
                results.update(json.load(file))
        bench_strategies.dump(STORED, results)
    if os.path.exists(STORED):
        with open(STORED, encoding="utf-8") as file:
            results = json.load(file)
    report.write("fate-disk", {bench: part(results, bench) for bench in ("decode", "prefill")})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "render"])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/dev/bin"))
    parser.add_argument("--out")
    parser.add_argument("--dir", default="/tmp")
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--small", action="store_true", help="to see that everything works")
    parser.add_argument("--results")
    args = parser.parse_args()
    if args.what == "run":
        run_all(args)
    else:
        render(args)


if __name__ == "__main__":
    main()
