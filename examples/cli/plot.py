#!/usr/bin/env python3
"""A picture of what a tool measured: the JSON of `moert-pack info` or `moert-bench` (layer, decode, prefill,
gemm). Needs matplotlib.

    plot.py FIGURES.json PICTURE.svg
"""
import json
import sys

GIB = float(1 << 30)


def bars(axes, names, values, label):
    axes.barh(range(len(names)), values)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(label)


def plot_info(figure, info):
    """Bytes of the model's parts, and of its experts in each scheme or version."""
    versions = info.get("schemes") or info["versions"]
    parts = info.get("parts", [])
    axes = figure.subplots(1, 2 if parts else 1, squeeze=False)[0]
    if parts:
        bars(axes[0], [p["name"] for p in parts], [p["bytes"] / GIB for p in parts], "GiB in the checkpoint")
    bars(axes[-1], [v["name"] for v in versions], [v["bytes"] / GIB for v in versions], "GiB of routed experts")


def rows_of(report):
    """(label, median, unit) of each measurement."""
    for group in report.get("groups", []):
        for row in group["variants"]:
            if "step_ms" in row:
                yield (f"{row['strategy']}, {row['budget']}, batch {group['batch']}", row["step_ms"]["median"],
                       "ms a step, median")
    for row in report.get("results", []):
        if "gflops" in row:
            yield f"{row['scheme']}, {row['kernels']}, {row['tokens']} tokens", row["gflops"], "GFLOP/s"


def plot_bench(figure, report):
    rows = list(rows_of(report))
    if not rows:
        raise SystemExit("plot.py: nothing in this object that can be drawn")
    bars(figure.subplots(), [r[0] for r in rows], [r[1] for r in rows], rows[0][2])


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__.strip())
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("plot.py: matplotlib is not installed: pip install matplotlib") from None
    matplotlib.use("svg" if sys.argv[2].endswith(".svg") else "agg")
    import matplotlib.pyplot as pyplot
    with open(sys.argv[1], encoding="utf-8") as file:
        data = json.load(file)
    entries = len(data.get("schemes") or data.get("versions") or data.get("groups") or data.get("results") or [])
    figure = pyplot.figure(figsize=(10, 2 + 0.3 * entries), layout="constrained")
    (plot_info if "kind" in data else plot_bench)(figure, data)
    figure.suptitle(data.get("path") or data.get("command", ""), fontsize=9)
    figure.savefig(sys.argv[2])


if __name__ == "__main__":
    main()
