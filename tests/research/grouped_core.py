#!/usr/bin/env python3
"""The grouped product over a core set of shapes, tokens and schemes, beside other programs, in one run.

    tests/research/grouped_core.py store DIR    docs/results/data/gemm-core.json
    tests/research/grouped_core.py renew DIR    replaces the runs of which DIR has files, none of the rivals
    tests/research/grouped_core.py plans DIR    writes the plans that were timed
    tests/research/grouped_core.py mma DIR      docs/results/data/gemm-mma.json: few.json and prompts.json of DIR, by
                                                --products, and f8few.json and f8prompts.json, by --numerics fp8, from a
                                                build of MOERT_CUDA_ARCHITECTURES=89-virtual; other schemes stay
    tests/research/grouped_core.py ratios       rivals' times over ours

To `store`, DIR has what `moert-bench gemm --json` wrote (SHAPE.json, q30*.json, beside.json in one call with the rivals) and lines of JSON of the rivals, medians with
extremes in microseconds: marlin.out, triton.out. Plans lie there as plan-*.plan.

The plans are of `moert-pack allocate`, over schemes of 16-bit activations with r = 1, and with r = 0.75 over schemes of
8-bit activations too. Their calibration is small-moe's, rounded to nearest, over 8,192 tokens: 32 experts of each of its
layers 1 to 4 stand for the 128 of Qwen3-30B-A3B's shape, Delta in units of what layer 1's costs the model.
"""
import argparse
import json
import pathlib
import re
import statistics

import experiment
import report

JSON = report.DATA / "gemm-core.json"
MMA = report.DATA / "gemm-mma.json"
FP8_ROUNDS = report.DATA / "grouped-fp8.json"  # of readme_sitting.py
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
FP8 = "q30-fp8"  # with --numerics fp8: fp8_b128 by fp8
BIT8 = ("w8a8", "w4a8_g128", "fp8_b128")  # that the chip could multiply in 8 bits
PEAK = {True: 1500e12, False: 790e12}     # operations a second that it reaches, by that
FIELDS = ("shape", "scheme", "tokens", "zipf", "weight_bytes", "experts", "gemms_us", "layer_us", "of_copy", "tflops")


def kept(path):
    run = json.loads(path.read_text())
    run["command"] = report.command_of(run["command"])
    run["results"] = [{k: r[k] for k in FIELDS} for r in run["results"]]
    return run


def rival_rows(path):
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return {r["T"]: r for r in rows if "T" in r}



def store(folder):
    stored = {"runs": {p.stem: kept(p) for p in sorted(folder.glob("*.json")) if p.stat().st_size},
              "rivals": {name: rival_rows(folder / f"{name}.out") for name in ("marlin", "triton")},
              "plans": {p.stem: p.read_text() for p in sorted(folder.glob("*.plan"))}}
    JSON.write_text(json.dumps(stored, separators=(",", ":")) + "\n")


def renew(folder):
    stored = load()
    runs = stored["runs"]
    runs.update({name: kept(folder / f"{name}.json") for name in (*runs, FP8) if (folder / f"{name}.json").is_file()})
    JSON.write_text(json.dumps(stored, separators=(",", ":")) + "\n")


def load():
    return json.loads(JSON.read_text())


def floor(run, row):
    """Microseconds of the weights' bytes at the copy rate, or of the arithmetic, whichever is more."""
    flops = row["tflops"] * row["gemms_us"]["median"] * 1e6
    return max(row["weight_bytes"] / run["copy_gbps"]["median"] * 1e-3,
               flops / PEAK[row["scheme"] in BIT8] * 1e6)


def us(v):
    return f"{v:.0f}" if v >= 100 else f"{v:.1f}"


def cell(run, row):
    return f"{us(row['gemms_us']['median'])} ({us(row['layer_us']['median'])}), {floor(run, row):.0f}"


def grid(names, tokens, zipf=0, text=cell):
    """A row a shape and scheme."""
    stored = load()["runs"]
    out = []
    for name in names:
        run = stored.get(name, {"results": []})
        known = {(r["shape"], r["scheme"], r["tokens"]): r for r in run["results"] if r["zipf"] == zipf}
        for kind in dict.fromkeys((r["shape"], r["scheme"]) for r in run["results"]):
            out.append([*kind, *(text(run, known[(*kind, t)]) if (*kind, t) in known else "-" for t in tokens)])
    return experiment.table(["shape", "scheme", *(f"{t} tokens" for t in tokens)], out)


def core():
    """Four schemes of one shape, one of the others."""
    tokens = [t for t in TOKENS if t != 128]
    tables = [grid((name,), tokens) for name in ("q30", "qwen1.5-moe", "deepseek-v2-lite", "qwen3-next-80b", "mixtral")]
    shown = [line for text in tables[1:] for line in text.split("\n")[2:] if "| w4a16_g128 |" in line]
    main = [line for line in tables[0].split("\n") if not re.search("w4a8_g128|w2a16", line)]
    by_fp8 = [line.replace("| fp8_b128 |", "| fp8_b128 by fp8 |") for line in grid((FP8,), tokens).split("\n")[2:]]
    return "\n".join([*main, *by_fp8, *shown])


def plans():
    """Plans beside uniform schemes: microseconds, and times as fast as bf16, w8a8 and w4."""
    stored = load()["runs"]
    tokens, out = (8, 512, 8192), []
    for name in ("q30-plans", "q30-plan-5-a8", "q30-plans2"):
        run = stored.get(name, {"results": []})
        known = {(r["scheme"], r["tokens"]): r for r in run["results"]}
        base = known if name == "q30-plans2" else {(r["scheme"], r["tokens"]): r for r in stored["q30-plans"]["results"]}
        for scheme in dict.fromkeys(r["scheme"] for r in run["results"]):
            if name != "q30-plans" and not scheme.startswith("plan"):
                continue
            cells = []
            for t in tokens:
                row = known[(scheme, t)]
                mine = row["gemms_us"]["median"]
                over = ", ".join(f"{base[(s, t)]['gemms_us']['median'] / mine:.2f}" for s in ("bf16", "w8a8", "w4a16_g128"))
                cells.append(f"{us(mine)}: {over}")
            out.append([scheme, *cells])
    shown = [row for row in out if row[0].startswith("plan")]
    return experiment.table(["plan", *(f"{t} tokens" for t in tokens)], shown)


def run_beside(stored):
    """Ours of the rivals' run."""
    return stored["runs"].get("beside", stored["runs"]["q30"])


RIVALS = (("Triton bf16", "triton", "triton_bf16"), ("torch bf16", "triton", "torch_bf16"),
          ("Marlin w4", "marlin", "marlin_w4"), ("Triton fp8", "triton", "triton_fp8"))
OURS = ("bf16", "w4a16_g128", "w8a8", "fp8_b128")
DEEPGEMM = (("DeepGEMM", "deepgemm_fp8"), ("DeepGEMM with SiLU", "deepgemm_fp8_act"))


def beside_times():
    """{name: {tokens: us}} of the products, ours and theirs, in one run."""
    stored = load()
    times = {scheme: {} for scheme in OURS}
    for row in run_beside(stored)["results"]:
        if row["scheme"] in times:
            times[row["scheme"]][row["tokens"]] = row["gemms_us"]["median"]
    for name, program, key in RIVALS:
        times[name] = {t: median(stored["rivals"][program], t, key) for t in TOKENS}
    return times


def times_of_rounds(rounds):
    """The same of readme_sitting.py's rounds: medians of theirs."""
    found = {}
    for part in rounds:
        for row in part["ours"]["results"]:
            found.setdefault(row["scheme"], {}).setdefault(row["tokens"], []).append(row["gemms_us"]["median"])
        for row in part["rivals"]:
            for name, key in (*((name, key) for name, _, key in RIVALS), *DEEPGEMM):
                if key in row:
                    found.setdefault(name, {}).setdefault(row["T"], []).append(row[key]["median"])
    return {name: {t: statistics.median(values) for t, values in of.items()} for name, of in found.items()}


def beside():
    times = beside_times()
    names = ("bf16", "Triton bf16", "torch bf16", "w4a16_g128", "Marlin w4", "w8a8", "fp8_b128", "Triton fp8")
    return experiment.table(["tokens", *names], [[str(t), *(us(times[n][t]) for n in names)] for t in TOKENS])


def by_fp8():
    """fp8 by fp8 and its rivals, medians of rounds in turns."""
    times = times_of_rounds(json.loads(FP8_ROUNDS.read_text())["rounds"])
    names = ("fp8_b128", "Triton fp8", *(name for name, _ in DEEPGEMM))
    rows = [[f"{t:,}", *(us(times[n][t]) for n in names)] for t in sorted(times[names[0]])]
    return experiment.table(["tokens", BY_FP8, *names[1:]], rows)


def lost(times, ours, rivals, tokens):
    """["8 tokens to Triton bf16"]: where a rival takes less time."""
    return [f"{t:,} tokens to {name} ({us(times[name][t])})" for t in tokens
            for name in sorted(rivals, key=lambda n: times[n][t]) if times[name][t] < times[ours][t]]


def median(rows, t, key):
    value = rows.get(t, rows.get(str(t), {})).get(key)
    return value["median"] if isinstance(value, dict) else None


BY_FP8 = "fp8_b128 by fp8"


def store_mma(folder):
    runs = json.loads(MMA.read_text())["runs"]
    for name, of in runs.items():
        new = [kept(folder / f"{name}.json"), kept(folder / f"f8{name}.json")]
        for row in new[1]["results"]:
            row["scheme"] = BY_FP8
        again = {row["scheme"] for run in new for row in run["results"]}
        for run in of:
            run["results"] = [row for row in run["results"] if row["scheme"] not in again]
        runs[name] = [run for run in of if run["results"]] + new
    MMA.write_text(json.dumps({"runs": runs}) + "\n")


def mma():
    """Products of few tokens and of prompts, as devices without wgmma have them."""
    runs = json.loads(MMA.read_text())["runs"]
    times = {name: {(r["scheme"], r["tokens"]): r for run in of for r in run["results"]} for name, of in runs.items()}
    tokens = (512, 2048, 8192)
    shown = ("bf16", "w4a16_g128", "w8a8", "w4a8_g128", "w8a8_fp8", BY_FP8, "fp8_b128", "mxfp4")
    text = lambda key: "/".join(us(times[name][key]["gemms_us"]["median"]) for name in ("few", "prompts"))
    rows = [[s, *(text((s, t)) for t in tokens), f"{times['prompts'][s, 8192]['tflops']:.0f}"]
            for s in shown]
    return experiment.table(["scheme", *(f"{t} tokens" for t in tokens), "TFLOP/s at 8192"], rows)


def ratios():
    """Rivals' times over ours, which prose may need."""
    times = beside_times()
    for name, ours in (("Marlin w4", "w4a16_g128"), ("Triton bf16", "bf16"), ("torch bf16", "bf16"), ("Triton fp8", "fp8_b128"),
                       ("Triton fp8", "w8a8")):
        print(name, "over", ours, {t: round(times[name][t] / times[ours][t], 3) for t in TOKENS})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("store", "renew", "plans", "mma", "ratios"))
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    args = parser.parse_args()
    if args.what == "store":
        store(args.folder)
    if args.what == "renew":
        renew(args.folder)
        return
    if args.what == "mma":
        store_mma(args.folder)
        return
    if args.what == "plans":
        for name, text in load()["plans"].items():
            (args.folder / f"{name}.json").write_text(text)
        return
    ratios()


if __name__ == "__main__":
    main()
