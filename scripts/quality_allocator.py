#!/usr/bin/env python3
"""Plans of moert-pack allocate against uniform schemes of the same stored bits.

    scripts/quality_allocator.py measure --small DIR --calib DIR --eval DIR [--work DIR]
    scripts/quality_allocator.py page

measure fills docs/quality/20-allocator.json (what is there already is not measured again); page
writes the section docs/quality/20-allocator.md from it.
"""
import argparse
import json
import pathlib
import shutil

import quality_lib as lib
import quality_page

JSON = lib.ROOT / "docs" / "quality" / "20-allocator.json"
WINDOWS = 32           # of every domain's 63
TOKENS = 32768         # that calibrate, plans and GPTQ alike
# What to compare: name -> (stored bits asked for, flags of allocate) or (None, scheme, method).
PLANS = {
    "2.25 plan": ("2.25", []),
    "2.5 plan": ("2.5", []),
    "2.25 plan, squared Delta": ("2.25", ["--power", "2"]),
    "2.25 plan, by expert": ("2.25", ["--granularity", "expert"]),
    "3.25 plan": ("3.25", []),
    "2.25 plan, relative Delta": ("2.25", ["--relative"]),
    "4.25 plan": ("4.25", []),
    "2.5 plan, by expert": ("2.5", ["--granularity", "expert"]),
    "2.5 plan, r = 0.75": ("2.5", ["--r", "0.75"]),
    "2.5 plan, a budget a layer": ("2.5", ["--per-layer"]),
}
UNIFORM = {
    "2.25 uniform": "w2a16_g128_asym",
    "2.5 uniform": "w2a16_g64_asym",
    "3.25 uniform": "w3a16_g128_asym",
    "4.25 uniform": "w4a16_g128_asym",
}
ORDER = ["2.25 uniform", "2.25 plan", "2.5 uniform", "2.5 plan", "2.25 plan, squared Delta",
         "2.25 plan, by expert", "3.25 uniform", "3.25 plan", "2.25 plan, relative Delta",
         "4.25 uniform", "4.25 plan", "2.5 plan, by expert", "2.5 plan, r = 0.75",
         "2.5 plan, a budget a layer"]


def measure(args):
    tools = lib.Tools(args.binaries, args.work)
    data = lib.load(JSON)
    calibration = tools.work / "calibration"
    tokens = ["--tokens", lib.calibration_files(args.calib), "--calibration-tokens", TOKENS]
    if not calibration.exists():
        tools.run("moert-pack", "calibrate", "--model", args.small, *tokens, "--out", calibration,
                  "--quiet")

    def score(*extra):
        return {d: lib.rounded(tools.window_nll(
            args.small, pathlib.Path(args.eval) / f"{d}.tokens.u16", "--limit", 512 * WINDOWS,
            *extra)) for d in lib.DOMAINS}

    if "bf16" not in data:
        data["bf16"] = {"stored_bits": 16.0, "nll": score("--strategy", "resident")}
        lib.save(JSON, data)
    for name in ORDER:
        if name in data:
            continue
        pack = tools.work / "plan-pack"
        shutil.rmtree(pack, ignore_errors=True)
        shutil.rmtree(str(pack) + ".partial", ignore_errors=True)
        entry = {}
        if name in PLANS:
            bits, flags = PLANS[name]
            plan = tools.work / "plan"
            tools.run("moert-pack", "allocate", "--calibration", calibration, "--bits", bits,
                      "--name", "plan", "--out", plan, "--quiet", *flags)
            summary = json.loads(plan.read_text())["summary"]
            entry = {k: summary[k] for k in ["gap", "loss", "seconds", "shares"]}
            what = ["--plan", plan]
        else:
            what = ["--schemes", UNIFORM[name]]
        tools.run("moert-pack", "quantize", "--model", args.small, "--out", pack, *what,
                  "--method", "gptq", *tokens, "--quiet")
        entry["stored_bits"] = tools.info(pack)["versions"][0]["stored_bits"]
        entry["nll"] = score("--experts", pack, "--strategy", "resident")
        data[name] = entry
        lib.save(JSON, data)
        print(name, {d: round(lib.perplexity(v), 3) for d, v in entry["nll"].items()}, flush=True)


def page():
    data = lib.load(JSON)
    base = data["bf16"]["nll"]
    lines = ["## Plans against uniform schemes", "",
             f"small-moe, GPTQ throughout, calibrated on {TOKENS:,} tokens of training text, a "
             f"third of each domain; perplexity over the first {WINDOWS} windows of each "
             "evaluation file. `gain` is the difference of the mean loss to the uniform scheme of "
             "the same bits, over the windows of all domains, with its 95 % interval; the "
             "optimality gap is that of the plan. Plans minimize the sum of Delta (r = 1) with gate and "
             "up tied, but for what their names say.", "",
             "    scripts/quality_allocator.py measure --small DIR --calib DIR --eval DIR",
             "    scripts/quality_allocator.py page", "",
             "| | stored bits | " + " | ".join(lib.DOMAINS) +
             " | loss over bf16 | gain | gap |", "|---|---|" + "---|" * (len(lib.DOMAINS) + 3),
             "| bf16 | 16 | " + " | ".join(f"{lib.perplexity(base[d]):.3f}" for d in lib.DOMAINS) +
             " | 0 | | |"]
    schemes = lib.load(JSON.with_name("10-schemes.json")).get("small-moe", {})
    hqq = {}
    for name, scheme in UNIFORM.items():  # measured over more windows there
        e = schemes.get(f"{scheme} hqq")
        if e:
            hqq[name + ", HQQ"] = {"stored_bits": e["stored_bits"],
                                   "nll": {d: v[:WINDOWS] for d, v in e["nll"].items()}}
    data = data | hqq
    order = ORDER + list(hqq)
    for name in sorted((n for n in data if n != "bf16"), key=lambda n: (n.split()[0], order.index(n))):
        e = data[name]
        over, _ = lib.difference(lib.pooled(e["nll"]), lib.pooled(base))
        uniform = data.get(name.split()[0] + " uniform")
        gain = ""
        if uniform and "plan" in name:
            m, half = lib.difference(lib.pooled(e["nll"]), lib.pooled(uniform["nll"]))
            gain = f"{m:+.4f} ± {half:.4f} ({100 * (2.718281828459045 ** m - 1):+.1f} % perplexity)"
        gap = f"{100 * e['gap']:.3f} %" if "gap" in e else ""
        lines.append(f"| {name} | {e['stored_bits']:.3f} | " + " | ".join(
            f"{lib.perplexity(e['nll'][d]):.3f}" for d in lib.DOMAINS) +
            f" | {over:+.4f} | {gain} | {gap} |")
    notes = JSON.with_name("20-allocator.notes")
    if notes.exists():
        lines += ["", notes.read_text().strip()]
    JSON.with_suffix(".md").write_text("\n".join(lines).strip() + "\n")
    quality_page.main()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("--small")
    parser.add_argument("--calib")
    parser.add_argument("--eval", default=str(lib.ROOT / "tests" / "data" / "eval"))
    parser.add_argument("--binaries", default=str(lib.ROOT / "build" / "dev" / "bin"))
    parser.add_argument("--work", default="build/quality")
    args = parser.parse_args()
    if args.what == "measure":
        if not args.calib or not args.small:
            parser.error("measure needs --small, a checkpoint, and --calib, a folder of tokens")
        measure(args)
    page()


if __name__ == "__main__":
    main()
