#!/usr/bin/env python3
"""Two builds of moert-bench beside each other on one machine: is any cell slower?

  two_builds.py --before BIN --after BIN [--backend cpu|cuda] [--rounds 5] [--limit 2] [--json FILE]

Every cell is a decode or prefill run of moert-bench. The two programs take turns, and the first of a
round alternates. A cell's figure is the median over rounds of the ratio after/before of the median
step, its spread the smallest and largest ratio. Exit status 1: some cell's median ratio is above
1 + limit/100. Nothing else should run on the machine."""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys

# name: arguments of moert-bench. Layers are few so that every round is short.
CELLS = {
    "cpu": {
        "decode w4, 25 and 60 %": ["decode", "--synthetic", "deepseek-v2-lite:4", "--schemes", "w4a16_g128",
                                   "--strategy", "on-demand;fate", "--budget", "25%,60%", "--workload", "mixed"],
        "decode w4, resident": ["decode", "--synthetic", "deepseek-v2-lite:4", "--schemes", "w4a16_g128",
                                "--strategy", "resident", "--budget", "100%", "--batch", "1,4"],
        "decode bf16, resident": ["decode", "--synthetic", "deepseek-v2-lite:2", "--strategy", "resident",
                                  "--budget", "100%"],
        "prefill w4": ["prefill", "--synthetic", "deepseek-v2-lite:2", "--prompt", "512", "--schemes", "w4a16_g128",
                             "--strategy", "resident;on-demand", "--budget", "100%"],
    },
    "cuda": {
        "decode w4, 12 layers": ["decode", "--synthetic", "qwen3-30b:12", "--schemes", "w4a16_g128",
                                 "--strategy", "on-demand;fate;importance", "--budget", "25%,50%,90%",
                                 "--workload", "mixed"],
        "decode w4, resident": ["decode", "--synthetic", "qwen3-30b:12", "--schemes", "w4a16_g128",
                                "--strategy", "resident", "--budget", "100%", "--batch", "1,8,32", "--graph"],
        "decode bf16, resident": ["decode", "--synthetic", "qwen3-30b:4", "--strategy", "resident",
                                  "--budget", "100%", "--batch", "1,8", "--graph"],
        "prefill w4": ["prefill", "--synthetic", "qwen3-30b:4", "--prompt", "2048", "--schemes", "w4a16_g128",
                       "--strategy", "resident;on-demand", "--budget", "100%"],
    },
}


def run(binary, arguments, backend, extra):
    """{(batch, budget, strategy): median step in ms} of one run."""
    command = [binary, *arguments, "--backend", backend, "--attention-us", "0", "--quiet", "--json", "-", *extra]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {out.returncode}\n{out.stderr}")
    steps = {}
    for group in json.loads(out.stdout)["groups"]:
        for variant in group["variants"]:
            if "refused" in variant:
                continue
            key = (group.get("batch", 1), variant["budget"], variant["strategy"])
            steps[key] = variant["step_p50_ms"]
    return steps


def compare(before, after, arguments, backend, rounds, extra):
    """{key: {"before": [ms], "after": [ms]}} over rounds."""
    found = {}
    for number in range(rounds):
        order = [("before", before), ("after", after)]
        for side, binary in order if number % 2 == 0 else reversed(order):
            for key, ms in run(binary, arguments, backend, extra).items():
                found.setdefault(key, {"before": [], "after": []})[side].append(ms)
    return {key: sides for key, sides in found.items() if len(sides["before"]) == len(sides["after"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", required=True, help="moert-bench of the state to compare with")
    parser.add_argument("--after", required=True, help="moert-bench of the state in question")
    parser.add_argument("--backend", choices=sorted(CELLS), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=2.0, help="percent that a cell may be slower")
    parser.add_argument("--json", type=pathlib.Path, help="writes the figures to this file")
    parser.add_argument("extra", nargs="*", help="more flags of moert-bench, after --")
    options = parser.parse_args()

    print(f"{platform.processor() or platform.machine()}, {options.backend}, {options.rounds} rounds")
    rows, slower = [], 0
    for name, arguments in CELLS[options.backend].items():
        cell = compare(options.before, options.after, arguments, options.backend, options.rounds, options.extra)
        for (batch, budget, strategy), sides in sorted(cell.items(), key=str):
            ratios = [a / b for a, b in zip(sides["after"], sides["before"])]
            median = statistics.median(ratios)
            slower += median > 1 + options.limit / 100
            rows.append({"cell": name, "batch": batch, "budget": budget, "strategy": strategy,
                         "before_ms": statistics.median(sides["before"]),
                         "after_ms": statistics.median(sides["after"]), "ratio": median,
                         "smallest": min(ratios), "largest": max(ratios)})
            row = rows[-1]
            print(f"{name:26} batch {batch:3} {budget:>5} {strategy:24} {row['before_ms']:9.4f} -> "
                  f"{row['after_ms']:9.4f} ms  {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                  flush=True)
    if options.json:
        options.json.write_text(json.dumps({"command": sys.argv, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{slower} of {len(rows)} cells slower by more than {options.limit} %")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
