#!/usr/bin/env python3
"""`dynaexq` beside caches of bf16 experts in the same bytes: docs/results/papers.md.

    offload_h200.py --bench build/cuda/lab/moert-bench --run converged|batch-32 --out FILE
    offload_h200.py --run converged|batch-32 --take FILE    puts it into docs/results/data

Qwen3-30B-A3B's shape, workload `mixed`, eager, 45 % of the bf16 experts' bytes in HBM. A command measures all strategies
in turns on the same steps. The device and the machine must be otherwise idle.
"""
import argparse
import json
import pathlib

import digest
import experiment
import report
import side_by_side

DYNAEXQ, LOW = "dynaexq:hi=bf16,lo=w4a16_g128,spare=64,interval_ms=20", "resident:scheme=w4a16_g128@100%"
EXPERTFLOW = "expertflow-2510-like:scheme=bf16"
FIELDS = ("strategy", "budget", "budget_bytes", "step_mean_ms", "step_p50_ms", "step_p99_ms", "repetition_ms", "hit_ratio",
          "low_answers", "bytes_loaded_a_step", "stall_ms", "peak_bytes")
# name: stored as, layers, strategies, flags
RUNS = {"converged": ("h200-offload", 12, (DYNAEXQ, "on-demand:scheme=bf16", "fate:scheme=bf16", LOW),
                      ("--warm", "400", "--steps", "64", "--repeats", "4", "--batch", "1,8")),
        "batch-32": ("h200-offload-32", 48, (DYNAEXQ, EXPERTFLOW, "on-demand:scheme=bf16", LOW),
                     ("--warm", "96", "--steps", "16", "--repeats", "3", "--batch", "32"))}


def measured(bench, layers, strategies, flags):
    command = [bench, "decode", "--backend", "cuda", "--synthetic", f"qwen3-30b:{layers}", "--schemes", "bf16,w4a16_g128",
               "--strategy", ";".join(strategies), "--budget", "45%", "--workload", "mixed", *flags, "--quiet", "--json", "-"]
    result = json.loads(side_by_side.output(command))
    result["command"] = report.command_of(result["command"])
    for group in result["groups"]:
        group["variants"] = [{key: v[key] for key in FIELDS if key in v} for v in group["variants"]]
    return result


def table(name):
    """Strategies behind each other, a row each; a column a batch."""
    groups = digest.data(RUNS[name][0])["groups"]
    rows = {}
    for group in groups:
        for v in group["variants"]:
            rows.setdefault(f"`{v['strategy'].split('@')[0]}`", [f"{v['budget_bytes'] / 2**30:.2f}"]).append(
                f"{v['step_mean_ms']:.2f} ({v['step_p50_ms']:.2f}), {v['step_p99_ms']:.2f}; {100 * v['hit_ratio']:.1f} %")
    heads = [f"batch {g.get('batch', 1)}: mean (median), P99, ms; hits" for g in groups]
    return experiment.table(["strategy", "GiB", *heads], [[row, *cells] for row, cells in rows.items()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=RUNS, required=True)
    parser.add_argument("--bench")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--take", type=pathlib.Path)
    options = parser.parse_args()
    stored, *run = RUNS[options.run]
    if options.take:
        (report.DATA / f"{stored}.json").write_text(options.take.read_text(encoding="utf-8"), encoding="utf-8")
    else:
        options.out.write_text(json.dumps(measured(options.bench, *run), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
