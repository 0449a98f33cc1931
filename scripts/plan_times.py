#!/usr/bin/env python3
"""Times of mixed plans on a device, as the cost table predicts them and as they are.

    moert-bench layer --backend cuda --synthetic qwen3-30b-a3b:1 --mixed 10 --layer-times ... --json RUN
    scripts/plan_times.py table RUN --out TABLE            rates by scheme and tokens of an expert
    scripts/plan_times.py page RUN                         docs/quality/21-plan-times.md

The run's strategies are `resident:scheme=V` of every scheme and of the mixed versions; the latter
are never used for the table. `page` keeps what it needs in docs/quality/21-plan-times.json and, run
without a file, writes the section again from that.
"""
import argparse
import json
import pathlib

import plot
import quality_allocator
import quality_lib as lib
import quality_page

JSON = lib.ROOT / "docs" / "quality" / "21-plan-times.json"


def version_of(row):
    return row["strategy"].split("scheme=")[1]


def reduced(run):
    """What the table and the page need of a run: by batch and version, microseconds a layer."""
    shape = run["shape"]
    out = {"command": run["command"], "shape": shape, "machine": run["machine"],
           "device": run["device"], "times": {}}
    for group in run["groups"]:
        times = {version_of(row): round(row["host"]["layer_us"]["p50"], 2)
                 for row in group["variants"] if "host" in row}
        out["times"][str(group["batch"])] = times
        if "predicted" in group:
            out["bytes"] = {v: p["bytes_a_layer"] for v, p in group["predicted"].items()}
            out["bits"] = {v: round(p["stored_bits"], 3) for v, p in group["predicted"].items()}
            out.setdefault("predicted", {})[str(group["batch"])] = {
                v: round(p["predicted_us_a_layer"], 2) for v, p in group["predicted"].items()}
    return out


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


def page(data):
    mixed = sorted((v for v in data["bits"] if v.startswith("mixed-")),
                   key=lambda v: int(v.split("-")[1]))
    batches = sorted(data["times"], key=int)
    lines = ["## Times of plans: predicted and measured", "",
             f"{len(mixed)} versions with a scheme drawn for each linear block, in proportions of "
             f"their own; one layer of {data['shape']['name']} on one H200, whole calls of the layer "
             "on the device's clock (median), every expert resident. T is predicted by the table of "
             "rates that uniform versions gave in the same run (`scripts/plan_times.py table`), "
             "mixed ones had no part in.", "", f"    {data['command']}", "",
             "| tokens a call | correlation of ranks, T and time | largest error of T | "
             "mean error | fastest to slowest plan, us |", "|---|---|---|---|---|"]
    panels = []
    for batch in batches:
        predicted = [data["predicted"][batch][v] for v in mixed]
        measured = [data["times"][batch][v] for v in mixed]
        rank = quality_allocator.pearson(quality_allocator.ranks(predicted),
                                         quality_allocator.ranks(measured))
        errors = [abs(p / m - 1) for p, m in zip(predicted, measured)]
        lines.append(f"| {batch} | {rank:.3f} | {100 * max(errors):.1f} % | "
                     f"{100 * lib.mean(errors):.1f} % | {min(measured):.1f} to "
                     f"{max(measured):.1f} |")
        low, high = min(predicted + measured), max(predicted + measured)
        panels.append(plot.Panel(f"{batch} tokens", "predicted, us", "measured, us", [
            quality_allocator.Dots("a plan", sorted(zip(predicted, measured))),
            plot.Line("predicted = measured", [(low, low), (high, high)], dash=1, markers=False,
                      color=6)]))
    plot.save(str(lib.ROOT / "docs" / "images" / "plan-times"), panels)
    lines += ["", plot.picture("images/plan-times", "predicted against measured times of plans"),
              "", "Uniform versions, microseconds a layer:", "",
              "| | stored bits | " + " | ".join(f"{b} tokens" for b in batches) + " |",
              "|---|---|" + "---|" * len(batches)]
    for version in (v for v in data["bits"] if not v.startswith("mixed-")):
        lines.append(f"| {version} | {data['bits'][version]:.2f} | " + " | ".join(
            f"{data['times'][b].get(version, float('nan')):.1f}" for b in batches) + " |")
    notes = JSON.with_name("21-plan-times.notes")
    if notes.exists():
        lines += ["", notes.read_text().strip()]
    JSON.with_suffix(".md").write_text("\n".join(lines).strip() + "\n")
    quality_page.main()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "page"])
    parser.add_argument("run", nargs="?", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--name", default="h200")
    parser.add_argument("--predicted", type=pathlib.Path,
                        help="a run of the same versions with --costs TABLE, anywhere")
    args = parser.parse_args()
    data = reduced(json.loads(args.run.read_text())) if args.run else lib.load(JSON)
    if args.predicted:
        predicted = reduced(json.loads(args.predicted.read_text()))
        data |= {k: predicted[k] for k in ["predicted", "bytes", "bits"]}
    if args.what == "table":
        args.out.write_text(json.dumps(table(data, args.name), indent=1) + "\n")
    else:
        if args.run:
            lib.save(JSON, data)
        page(data)


if __name__ == "__main__":
    main()
