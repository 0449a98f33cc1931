#!/usr/bin/env python3
"""The grouped product over a core set of shapes, tokens and schemes, beside other programs, in one run.

    tests/research/grouped_core.py store DIR    docs/results/data/gemm-core.json and a table of rivals.json
    tests/research/grouped_core.py renew DIR    replaces the runs of which DIR has files, none of the rivals
    tests/research/grouped_core.py plans DIR    writes the plans that were timed
    tests/research/grouped_core.py ratios       rivals' times over ours

To `store`, DIR has what `moert-bench gemm --json` wrote (SHAPE.json, q30*.json, beside.json in one call with the rivals) and lines of JSON of the rivals, medians with
extremes in microseconds: marlin.out, triton.out, triton-w4.out. Plans lie there as plan-*.plan, and what
`ncu --page details --csv` said of the slowest cells as ncu-N.out, in the order of slowest.txt.

The plans are of `moert-pack allocate`, over schemes of 16-bit activations with r = 1, and with r = 0.75 over schemes of
8-bit activations too. Their calibration is small-moe's, rounded to nearest, over 8,192 tokens: 32 experts of each of its
layers 1 to 4 stand for the 128 of Qwen3-30B-A3B's shape, Delta in units of what layer 1's costs the model.
"""
import argparse
import csv
import json
import math
import pathlib

import experiment
import report

JSON = report.DATA / "gemm-core.json"
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
BIT8 = ("w8a8", "w4a8_g128", "fp8_b128")  # that the chip could multiply in 8 bits
PEAK = {True: 1500e12, False: 790e12}     # operations a second that it reaches, by that
GROUPED = "The grouped product, prompts included"
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


PROFILED = ("Duration", "Issue Slots Busy", "DRAM Throughput", "Warp Cycles Per Issued Instruction")


def profiles(folder):
    """Of the slowest cells, by kernel: {metric: value}."""
    lines = folder / "slowest.txt"
    cells = [line.split()[1:5] for line in lines.read_text().splitlines() if line.startswith("RUN")] if lines.is_file() else []
    out = []
    for i, (over, shape, scheme, tokens) in enumerate(cells):
        kernels = {}
        with open(folder / f"ncu-{i + 1}.out", encoding="utf-8") as file:
            for row in csv.DictReader(line for line in file if line.startswith('"')):
                if row["Metric Name"] in PROFILED:
                    kernels.setdefault(row["ID"], {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        out.append({"shape": shape, "scheme": scheme, "tokens": int(tokens), "over_floor": float(over),
                    "kernels": list(kernels.values())})
    return out


def store(folder):
    stored = {"runs": {p.stem: kept(p) for p in sorted(folder.glob("*.json")) if p.stat().st_size},
              "rivals": {name: rival_rows(folder / f"{name}.out") for name in ("marlin", "triton", "triton-w4")},
              "plans": {p.stem: p.read_text() for p in sorted(folder.glob("*.plan"))}, "profiles": profiles(folder)}
    JSON.write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    if not stored["rivals"]["triton"]:
        return
    rivals = json.loads((report.DATA / "rivals.json").read_text())
    rivals["tables"][GROUPED] = beside(stored)
    (report.DATA / "rivals.json").write_text(json.dumps(rivals, separators=(",", ":")) + "\n")


def renew(folder):
    stored = load()
    runs = stored["runs"]
    runs.update({name: kept(folder / f"{name}.json") for name in runs if (folder / f"{name}.json").is_file()})
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
    return grid(("q30", "qwen1.5-moe", "deepseek-v2-lite", "qwen3-next-80b", "mixtral"), TOKENS)


def longest():
    return grid(("q30-64k",), (65536,))


def zipf():
    return grid(("q30-zipf",), TOKENS, 0.8)


def bits(run, row):
    hidden, intermediate = 2048, 768  # Qwen3-30B-A3B
    return row["weight_bytes"] * 8 / (row["experts"] * 3 * hidden * intermediate)


def plans():
    """Plans beside uniform schemes: stored bits, microseconds, and times as fast as bf16, w8a8 and w4."""
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
                cells.append(f"{us(mine)} ({us(row['layer_us']['median'])}): {over}")
            out.append([scheme, f"{bits(run, known[(scheme, 512)]):.2f}", *cells])
    return experiment.table(["version", "stored bits", *(f"{t} tokens" for t in tokens)], out)


def few_fp4():
    run = load()["runs"]["q30-fp4"]
    known = {(r["scheme"], r["tokens"]): r["gemms_us"]["median"] for r in run["results"]}
    tokens = (1, 8, 32, 128)
    return experiment.table(["scheme", *(f"{t} tokens" for t in tokens)], [
        [s, *(f"{us(known[(s, t)])}: {known[(s, t)] / known[('w4a16_g128', t)]:.2f}" for t in tokens)]
        for s in ("w4a16_g128", "mxfp4", "nvfp4")])


def run_beside(stored):
    """Ours of the rivals' run."""
    return stored["runs"].get("beside", stored["runs"]["q30"])


def marlin():
    stored = load()
    rows = {(r["scheme"], r["tokens"]): r["gemms_us"]["median"] for r in run_beside(stored)["results"]}
    theirs = {int(t): r for t, r in stored["rivals"]["marlin"].items()}
    return experiment.table(["tokens", "ours w4", "Marlin w4", "its rows a block", "times as fast"], [
        [str(t), us(rows[("w4a16_g128", t)]), us(theirs[t]["marlin_w4"]["median"]), str(theirs[t]["block"]),
         f"{theirs[t]['marlin_w4']['median'] / rows[('w4a16_g128', t)]:.2f}"] for t in TOKENS])


def profile():
    rows = []
    for cell_ in load()["profiles"]:
        for product, k in zip(("gate, up", "down"), sorted(cell_["kernels"], key=lambda k: -k["Duration"])):
            rows.append([f"{cell_['shape']}, {cell_['scheme']}, {cell_['tokens']}", f"{cell_['over_floor']:.1f}", product,
                         f"{k['Duration'] / 1e3:.0f}", *(f"{k[m]:.0f} %" for m in PROFILED[1:3]),
                         f"{k[PROFILED[3]]:.1f}"])
    return experiment.table(["cell", "times its floor", "product", "us", "issue slots busy", "memory rate",
                             "cycles a warp between instructions"], rows)


def median(rows, t, key):
    value = rows.get(t, rows.get(str(t), {})).get(key)
    return value["median"] if isinstance(value, dict) else None


def beside(stored):
    """The table of rivals.json: ours and theirs of one run."""
    run, rivals = run_beside(stored), stored["rivals"]
    ours = {(r["scheme"], r["tokens"]): r for r in run["results"]}
    theirs = lambda name, t, key: "-" if median(rivals[name], t, key) is None else us(median(rivals[name], t, key))
    both = lambda scheme, t: (f"{us(ours[(scheme, t)]['gemms_us']['median'])} "
                              f"({us(ours[(scheme, t)]['layer_us']['median'])})")
    rows = []
    for t in TOKENS:
        rows.append([str(t), both("bf16", t), f"{theirs('triton', t, 'triton_bf16')} "
                     f"({theirs('triton', t, 'triton_bf16_layer')})", theirs("triton", t, "torch_bf16"),
                     both("w4a16_g128", t), theirs("marlin", t, "marlin_w4"), theirs("triton-w4", t, "triton_w4"),
                     both("w8a8", t), both("fp8_b128", t), theirs("triton", t, "triton_fp8"),
                     f"{floor(run, ours[('bf16', t)]):.0f} / {floor(run, ours[('w4a16_g128', t)]):.0f}"])
    return {"columns": ["tokens", "ours bf16", "Triton bf16", "torch bf16", "ours w4", "Marlin w4", "Triton w4",
                        "ours w8a8", "ours fp8", "Triton fp8", "floor bf16 / w4"], "rows": rows}


def ratios():
    """What the prose needs: rivals' times over ours, and means over tokens."""
    stored = load()
    ours = {(r["scheme"], r["tokens"]): r["gemms_us"]["median"] for r in run_beside(stored)["results"]}
    for name, key, scheme in (("marlin", "marlin_w4", "w4a16_g128"), ("triton-w4", "triton_w4", "w4a16_g128"),
                              ("triton", "triton_bf16", "bf16"), ("triton", "torch_bf16", "bf16"),
                              ("triton", "triton_fp8", "fp8_b128"), ("triton", "triton_fp8", "w8a8")):
        over = {t: median(stored["rivals"][name], t, key) / ours[(scheme, t)] for t in TOKENS
                if median(stored["rivals"][name], t, key)}
        few = [v for t, v in over.items() if t <= 128]
        mean = math.exp(sum(map(math.log, few)) / len(few)) if few else math.nan
        print(key, "over", scheme, {t: round(v, 3) for t, v in over.items()}, "mean up to 128:", round(mean, 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("store", "renew", "plans", "ratios"))
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    args = parser.parse_args()
    if args.what == "store":
        store(args.folder)
    if args.what == "renew":
        renew(args.folder)
        return
    if args.what == "plans":
        for name, text in load()["plans"].items():
            (args.folder / f"{name}.json").write_text(text)
        return
    ratios()


if __name__ == "__main__":
    main()
