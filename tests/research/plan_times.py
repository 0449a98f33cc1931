#!/usr/bin/env python3
"""Times of mixed plans on a device, as the cost table predicts them and as they are.

    tests/research/plan_times.py measure --bin build/cuda/bin --out DIR
    tests/research/plan_times.py page [DIR]                       build/report/plan-times.md
    tests/research/plan_times.py ship DIR/table.json              lib/offline/allocate/h200_costs.h

measure times a layer with every uniform version (DIR/uniform.json, workload `uniform`), makes a table
of rates by scheme and tokens of an expert from that (DIR/table.json, what `moert-pack allocate
--profile` reads), and then times versions with a scheme drawn for each linear block, and predicts
them by the table (DIR/plans-*.json, a set of schemes each, workload `mixed`): these had no part in
it. `page` keeps what it
needs in docs/quality/21-plan-times.json and, run without a file, writes the section again from that.
`ship` makes a table the one that `moert-pack allocate` uses by itself.
"""
import argparse
import json
import pathlib
import subprocess

import plot
import quality_allocator
import quality_lib as lib
import report

JSON = report.DATA / "plan-times.json"


DEVICE = "one H200, CUDA 13.0, driver 580.159.04"
# Mixed versions draw from these.
SCHEMES = ["w8a16_g128", "w8a8", "w4a16_g128_asym", "w4a8_g128", "w4a16_g-1_asym", "w3a16_g128_asym",
           "w3a16_g-1_asym", "w2a16_g64_asym", "w2a16_g128_asym", "w2a16_g-1_asym"]
MORE = ["bf16", "w4a16_g128"]  # in the table too
SETS = {"ten": ("ten schemes of 2 to 8 bits, activations of 16 and 8", SCHEMES),
        "a16": ("a 2.25-bit plan's: per channel, 2, 3 and 4 bits", ["w4a16_g-1_asym",
                "w3a16_g-1_asym", "w2a16_g-1_asym"]),
        "a8": ("w4a8 and w8a8", ["w8a8", "w4a8_g128"])}


def version_of(row):
    return row["strategy"].split("scheme=")[1]


def layer_us(row, layers):
    """On the device's clock; on the CPU the caller's."""
    if row.get("host"):
        return row["host"]["layer_us"]["p50"]
    return 1e3 * row["step_p50_ms"] / layers


def reduced(run):
    """What the table and the page need of a run: by batch and version, microseconds a layer."""
    shape = run["shape"]
    out = {"command": run["command"], "shape": shape, "machine": run["machine"],
           "device": run["device"], "times": {}}
    for group in run["groups"]:
        out["times"][str(group["batch"])] = {
            version_of(row): round(layer_us(row, shape["layers"]), 2)
            for row in group["variants"] if "refused" not in row}
        out["bytes"] = {v: p["bytes_a_layer"] for v, p in group["predicted"].items()}
        out["bits"] = {v: round(p["stored_bits"], 3) for v, p in group["predicted"].items()}
        out.setdefault("predicted", {})[str(group["batch"])] = {
            v: round(p["predicted_us_a_layer"], 2) for v, p in group["predicted"].items()}
    return out


def measure(args):
    args.out.mkdir(parents=True, exist_ok=True)
    unit, rates = args.out / "unit.json", args.out / "table.json"
    unit.write_text(json.dumps({"name": "unit", "rates": {s: [[1, 1e12]] for s in SCHEMES + MORE}}))

    def bench(name, plans, costs, workload, drawn):
        versions = [f"mixed-{i}" for i in range(plans)] + SCHEMES + MORE
        command = [str(args.bin / "moert-bench"), "layer", "--backend", args.backend, "--synthetic",
                   args.shape, "--schemes", ",".join(SCHEMES + MORE), "--mixed", str(plans),
                   "--mixed-schemes", ",".join(drawn), "--strategy", ";".join(f"resident:scheme={v}" for v in versions), "--tokens",
                   args.tokens, "--steps", str(args.steps), "--repeats", "5", "--costs", str(costs),
                   "--workload", workload, "--force", "--quiet", "--json", str(args.out / name)]
        command += ["--layer-times"] if args.backend == "cuda" else []
        subprocess.run(command, check=True)
        return json.loads((args.out / name).read_text())

    data = reduced(bench("uniform.json", 0, unit, "uniform", SCHEMES))
    rates.write_text(json.dumps(table(data, args.name), indent=1) + "\n")
    for name, (_, drawn) in SETS.items():
        data = reduced(bench(f"plans-{name}.json", args.plans, rates, "mixed", drawn))
        for batch in data["times"]:
            print(name, batch, f"rank correlation {correlations(data, batch)[0]:.3f}", flush=True)


def correlations(data, batch):
    """Of ranks, of the times, and how many plans."""
    mixed = [v for v in data["bits"] if v.startswith("mixed-")]
    predicted = [data["predicted"][batch][v] for v in mixed]
    measured = [data["times"][batch][v] for v in mixed]
    return (quality_allocator.pearson(quality_allocator.ranks(predicted),
                                      quality_allocator.ranks(measured)),
            quality_allocator.pearson(predicted, measured), len(mixed))


def table(data, name):
    """Rates of whole layer calls: bytes of the experts that tokens come to over the time."""
    experts, top_k = data["shape"]["experts"], data["shape"]["top_k"]
    rates = {}
    for batch, times in sorted(data["times"].items(), key=lambda i: int(i[0])):
        tokens = int(batch) * top_k / experts
        used = 1 - 2.718281828459045 ** -tokens
        for version, us in times.items():
            if version.startswith("mixed-"):
                continue
            rate = used * data["bytes"][version] / (1e-6 * us)
            rates.setdefault(version, []).append([round(tokens / used, 3), float(f"{rate:.4g}")])
    return {"name": name, "rates": rates,
            "source": f"moert-bench layer, {data['shape']['name']}, {len(data['times'])} batches"}


def ship(path):
    """The table as a header: moert-pack must find it wherever it is installed."""
    data = json.loads(path.read_text())
    data["source"] += "; " + DEVICE
    rows = [f'  "{k}": {json.dumps(data[k])},' for k in ["name", "source"]] + ['  "rates": {']
    rows += [f'    "{scheme}": {json.dumps(points)}' + ("," if i + 1 < len(data["rates"]) else "")
             for i, (scheme, points) in enumerate(sorted(data["rates"].items()))]
    (lib.ROOT / "lib" / "offline" / "allocate" / "h200_costs.h").write_text(
        "// Written by tests/research/plan_times.py ship: whole calls of a layer, weight bytes a second by "
        "scheme and\n// tokens of an expert that gets any (cost_table.h: rates).\n"
        "#ifndef MOERT_LIB_OFFLINE_ALLOCATE_H200_COSTS_H_\n#define MOERT_LIB_OFFLINE_ALLOCATE_H200_COSTS_H_\n\n"
        "namespace moert {\n\n// clang-format off\ninline constexpr char kH200Costs[] = R\"({\n" +
        "\n".join(rows) + "\n  }\n})\";\n// clang-format on\n\n}  // namespace moert\n\n"
        "#endif  // MOERT_LIB_OFFLINE_ALLOCATE_H200_COSTS_H_\n")


def page(sets):
    first = next(iter(sets.values()))
    batches = sorted(first["times"], key=int)
    plans = correlations(first, batches[0])[2]
    lines = ["## Times of plans: predicted and measured", "",
             f"{plans} versions a set, with a scheme drawn for each linear block in proportions that "
             f"each version has of its own, at the shape of {first['shape']['name']} on {DEVICE}; whole "
             "calls of a layer on the device's clock (median), every expert resident, popular "
             "experts and others (workload `mixed`). T is predicted by a table of rates that uniform "
             "versions gave in another run, with all experts equally popular; mixed ones had no "
             "part in it.", "",
             "    tests/research/plan_times.py measure --bin build/cuda/bin --out DIR",
             "    tests/research/plan_times.py page DIR; tests/research/plan_times.py ship DIR/table.json", "",
             "| drawn from | tokens a call | correlation of T and time, of ranks | mean error of T | "
             "largest | fastest to slowest plan, us |", "|---|---|---|---|---|---|"]
    panels = []
    for name, data in sets.items():
        mixed = [v for v in data["bits"] if v.startswith("mixed-")]
        for batch in batches:
            predicted = [data["predicted"][batch][v] for v in mixed]
            measured = [data["times"][batch][v] for v in mixed]
            rank, plain, _ = correlations(data, batch)
            errors = [p / m - 1 for p, m in zip(predicted, measured)]
            lines.append(f"| {SETS[name][0] if batch == batches[0] else ''} | {batch} | {plain:.3f}, "
                         f"{rank:.3f} | {100 * lib.mean(errors):+.1f} % | "
                         f"{100 * max(errors, key=abs):+.1f} % | {min(measured):.1f} to "
                         f"{max(measured):.1f} |")
            if batch in ["8", "32", "512"]:
                low, high = min(predicted + measured), max(predicted + measured)
                panels.append(plot.Panel(f"{name}, {batch} tokens", "predicted, us", "measured, us", [
                    quality_allocator.Dots("a plan", sorted(zip(predicted, measured))),
                    plot.Line("predicted = measured", [(low, low), (high, high)], dash=1,
                              markers=False, color=6)]))
    plot.save(report.image("plan-times"), panels)
    lines += ["", plot.picture("images/plan-times", "predicted against measured times of plans"),
              "", "Uniform versions in the same run, microseconds a layer:", "",
              "| | stored bits | " + " | ".join(f"{b} tokens" for b in batches) + " |",
              "|---|---|" + "---|" * len(batches)]
    for version in (v for v in first["bits"] if not v.startswith("mixed-")):
        lines.append(f"| {version} | {first['bits'][version]:.2f} | " + " | ".join(
            f"{first['times'][b].get(version, float('nan')):.1f}" for b in batches) + " |")
    report.write("plan-times", "\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "page", "ship"])
    parser.add_argument("run", nargs="?", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=lib.ROOT / "build" / "cuda" / "bin")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--shape", default="qwen3-30b:2")
    parser.add_argument("--plans", type=int, default=12)
    parser.add_argument("--tokens", default="1,8,32,128,512")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--name", default="h200")
    args = parser.parse_args()
    if args.what == "measure":
        if not args.out:
            parser.error("measure needs --out, a folder")
        measure(args)
        return
    if args.what == "ship":
        ship(args.run)
        return
    sets = lib.load(JSON)
    if args.run:
        sets = {name: reduced(json.loads((args.run / f"plans-{name}.json").read_text()))
                for name in SETS if (args.run / f"plans-{name}.json").exists()}
        lib.save(JSON, sets)
    page(sets)


if __name__ == "__main__":
    main()
