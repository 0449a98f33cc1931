"""Measures and replays the built-in strategies for build/report/benchmarks.md; tests/research/benchmarks.py draws it.

    bench_strategies.py wall     --bin BIN --profile OUT --out OUT   probes, then runs, on a quiet machine
    bench_strategies.py predict  --bin BIN --profile P --wall FILE --out OUT   moert-sim on the same steps
    bench_strategies.py shapes   --bin BIN --profile P --out OUT     four shapes, replayed
    bench_strategies.py bundled  --bin BIN --out OUT                 the bundled model: real runs, replays

Only `wall` takes times of this machine; the rest is the same bits anywhere. In `wall` every strategy
has the machine to itself: beside others, one that moves experts by time would get theirs. With --only
it measures those strategies again, on a machine of the same kind, and keeps the profile and the rest.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SHAPE, STEPS, WARM, REPEATS = "qwen3-30b:3", 8, 48, 3
BUDGETS = ["30%", "40%", "50%"]
VERSIONS = "bf16,w4a16_g128,w2a16_g64_asym"
WORKLOAD = ["--workload", "mixed", "--batch", "2", "--seed", "1", "--schemes", VERSIONS]
ATTENTION_US, LINK_GBPS = "300", "4"
SHAPES = ["qwen1.5-moe:6", "deepseek-v2-lite:6", "qwen3-30b:6", "qwen3-next-80b:6"]
SHAPE_STEPS, SHAPE_WARM = 256, 256


def run(command, refusable=False):
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode == 2 and refusable:
        return {"refused": out.stderr.strip().split(": ", 1)[-1]}
    if out.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {out.returncode}\n{out.stderr}")
    return json.loads(out.stdout)


def tool(args, name):
    return os.path.join(args.bin, "moert-" + name)


def built_in(args):
    """Names of the registry; its error for an unknown one lists them."""
    out = subprocess.run([tool(args, "bench"), "decode", "--synthetic", "tiny:1", "--strategy", "?"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    names = re.search(r"there are: (.*)", out.stderr)
    if not names:
        sys.exit(out.stderr)
    return names.group(1).strip().split(", ")


def dump(path, value):
    """One measurement a line."""
    def text(v, depth):
        flat = json.dumps(v)
        if len(flat) < 100 or not isinstance(v, (dict, list)) or depth > 1:
            return flat
        pad = " " * (depth + 1)
        if isinstance(v, list):
            return "[\n" + ",\n".join(pad + text(x, depth + 1) for x in v) + "\n" + pad[:-1] + "]"
        rows = (f"{pad}{json.dumps(k)}: {text(x, depth + 1)}" for k, x in v.items())
        return "{\n" + ",\n".join(rows) + "\n" + pad[:-1] + "}"

    def short(v):
        if isinstance(v, float):
            return float(f"{v:.6g}")
        if isinstance(v, dict):
            return {k: short(x) for k, x in v.items()}
        return [short(x) for x in v] if isinstance(v, list) else v
    with open(path, "w", encoding="utf-8") as out:
        out.write(text(short(value), 0) + "\n")


def wall_command(args, strategy, budget):
    return ([tool(args, "bench"), "decode", "--synthetic", SHAPE, "--strategy", strategy, "--budget",
             budget] + WORKLOAD +
            ["--threads", "8", "--io-threads", "2", "--attention-us", ATTENTION_US, "--link-gbps",
             LINK_GBPS, "--warm", str(WARM), "--steps", str(STEPS), "--repeats", str(REPEATS),
             "--profile", args.profile, "--force", "--quiet", "--json", "-"])


def merge(runs):
    """Runs of one strategy each as one object: what they share, and the variants."""
    shared = {k: runs[0][k] for k in ("machine", "commit", "seed", "shape", "workload", "schemes",
                                      "threads", "io_threads", "link_gbps", "attention_us",
                                      "warm_steps", "steps", "repeats", "command")}
    shared["variants"] = [dict(r["groups"][0]["variants"][0], transfer_ms=r["groups"][0]["transfer_ms"],
                               layer_ms=r["groups"][0]["layer_ms"]) for r in runs]
    return shared


def wall_again(args):
    """The rows of --only in args.out, one after another, each stored as soon as it is there."""
    with open(args.out, encoding="utf-8") as file:
        stored = json.load(file)
    for strategy in args.only.split(","):
        for budget in BUDGETS:
            result = run(wall_command(args, strategy, budget), refusable=True)
            if "refused" in result:
                continue
            new = dict(merge([result])["variants"][0], commit=result["commit"])
            same = [i for i, v in enumerate(stored["variants"])
                    if (v["strategy"], v["budget"]) == (strategy, budget)]
            stored["variants"][slice(same[0], same[0] + 1) if same else slice(-1, -1)] = [new]
            dump(args.out, stored)
            print(strategy, budget, new["step_mean_ms"], file=sys.stderr, flush=True)


def wall(args):
    if args.only:
        return wall_again(args)
    subprocess.run([tool(args, "bench"), "probe", "--backend", "cpu", "--synthetic",
                    SHAPE.split(":")[0], "--threads", "8", "--io-threads", "2", "--attention-us",
                    ATTENTION_US, "--schemes", VERSIONS, "--link-gbps", LINK_GBPS, "--tokens",
                    "1,2,4", "--repeats", "3", "--force", "--quiet", "--json", args.profile], check=True)
    runs = []
    for strategy in built_in(args):
        # A cell that holds everything, or nothing, does not depend on the budget.
        fixed = {"resident": ["100%"], "load-on-demand": ["40%"]}.get(strategy, BUDGETS)
        for budget in fixed:
            result = run(wall_command(args, strategy, budget), refusable=True)
            if "refused" not in result:
                runs.append(result)
    dump(args.out, merge(runs))


def trace_of(args, shape, steps, folder, workload):
    path = os.path.join(folder, shape.replace(":", "-"))
    subprocess.run([tool(args, "bench"), "workload", "--synthetic", shape, "--steps", str(steps),
                    "--out", path, "--quiet"] + workload, check=True)
    return path


def predict(args):
    with open(args.wall, encoding="utf-8") as file:
        measured = json.load(file)
    rows = []
    counted = measured["steps"] * measured["repeats"]
    with tempfile.TemporaryDirectory() as folder:
        trace = trace_of(args, SHAPE, measured["warm_steps"] + counted, folder, WORKLOAD)
        for v in measured["variants"]:
            s = run([tool(args, "sim"), "--trace", trace, "--profile", args.profile, "--strategy",
                     v["strategy"], "--budget", v["budget"], "--warm", str(measured["warm_steps"]),
                     "--attention-us", ATTENTION_US, "--link-gbps", LINK_GBPS, "--force", "--quiet", "--json",
                     "-"])
            rows.append({"strategy": v["strategy"], "budget": v["budget"],
                         "measured_ms": v["step_mean_ms"], "predicted_ms": s["tpot_ms"]["mean"],
                         "measured_hits": v["hit_ratio"],
                         "predicted_hits": s["experts"]["hit_ratio"]})
    dump(args.out, {"rows": rows})


def shapes(args):
    results = []
    names = built_in(args)
    workload = ["--workload", "mixed", "--batch", "1", "--seed", "1", "--schemes", VERSIONS]
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            trace = trace_of(args, shape, SHAPE_STEPS + SHAPE_WARM, folder, workload)
            for strategy in names:
                budget = "100%" if strategy == "resident" else "40%"
                s = run([tool(args, "sim"), "--trace", trace, "--profile", args.profile, "--strategy",
                         strategy, "--budget", budget, "--warm", str(SHAPE_WARM), "--attention-us",
                         ATTENTION_US, "--link-gbps", LINK_GBPS, "--oracles", "--force", "--quiet", "--json",
                         "-"], refusable=True)
                if "refused" in s:
                    continue
                results.append({"shape": shape, "strategy": strategy, "budget": budget,
                                "step_ms": s["tpot_ms"], "hit_ratio": s["experts"]["hit_ratio"],
                                "low_answers": s["experts"]["low_answers"],
                                "lookups": s["experts"]["lookups"],
                                "stall_ms": s["stall_ms"]["total"] / SHAPE_STEPS,
                                "oracles": s["oracles"]})
                print(shape, strategy, file=sys.stderr)
    dump(args.out, {"warm_steps": SHAPE_WARM, "steps": SHAPE_STEPS, "rows": results})


def bundled(args):
    model = os.path.join(ROOT, "examples/models/tiny-moe")
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for strategy in built_in(args):
            common = ["--budget", "100%" if strategy == "resident" else "40%", "--link-gbps", "0.5",
                      "--strategy", strategy, "--force", "--quiet", "--json", "-"]
            for domain in args.domains.split(","):
                replay = run([tool(args, "sim"), "--trace",
                              os.path.join(ROOT, f"tests/data/traces/tiny-{domain}.safetensors"),
                              "--model", model, "--steps", "512", "--oracles"] + common,
                             refusable=True)
                if "refused" in replay:
                    continue
                real = run([tool(args, "run"), "ppl", "--model", model, "--cache", cache, "--tokens",
                            os.path.join(ROOT, f"tests/data/eval/{domain}.tokens.u16"), "--limit",
                            "512", "--step-tokens", "1", "--clock", "virtual"] + common)
                rows.append({"domain": domain, "strategy": strategy,
                             "real_hits": real["experts"]["hit_ratio"],
                             "replayed_hits": replay["experts"]["hit_ratio"],
                             "real_ms": real["tpot_ms"]["mean"],
                             "replayed_ms": replay["tpot_ms"]["mean"],
                             "oracles": replay["oracles"]})
                print(domain, strategy, file=sys.stderr)
    dump(args.out, {"rows": rows})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["wall", "predict", "shapes", "bundled"])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/dev/lab"))
    parser.add_argument("--profile")
    parser.add_argument("--wall")
    parser.add_argument("--only", help="wall: strategies to measure again in --out")
    parser.add_argument("--domains", default="gsm8k")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    {"wall": wall, "predict": predict, "shapes": shapes, "bundled": bundled}[args.what](args)


if __name__ == "__main__":
    main()
