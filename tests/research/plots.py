#!/usr/bin/env python3
"""Draws the pictures of the documentation, docs/images/*.svg, from docs/results/data.

    pip install matplotlib
    tests/research/plots.py [NAME...]

Each picture is a function here, named as its file.
"""
import json
import sys

import plot
import report

IMAGES = report.ROOT / "docs" / "images"


def data(name):
    return json.loads((report.DATA / f"{name}.json").read_text(encoding="utf-8"))


def box(axes, theme, x, y, width, height, title, text, color, size=11):
    from matplotlib.patches import FancyBboxPatch
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=1.2",
                                  facecolor=theme["fill"], edgecolor=color, linewidth=1.4))
    axes.text(x + width / 2, y + height - 3.2, title, ha="center", va="top", fontsize=size, fontweight="bold",
              color=color)
    axes.text(x + width / 2, y + height - 9.5, text, ha="center", va="top", fontsize=8, color=theme["ink"],
              linespacing=1.4)


def arrow(axes, theme, begin, end, text="", color=None, dashed=False):
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "-|>", "color": color or theme["soft"], "linewidth": 1.3,
                                              "linestyle": "--" if dashed else "-", "shrinkA": 0, "shrinkB": 0})
    if text:
        axes.text((begin[0] + end[0]) / 2 + 1, (begin[1] + end[1]) / 2, text, fontsize=7.5, color=theme["soft"],
                  va="center")


def canvas(figure, width, height):
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    return axes


def path_of_a_batch():
    """Route, predict, plan, fetch, multiply, combine, and the tiers below."""
    stages = [("route", "gate, top-k,\ntokens by expert", 0), ("predict", "what will the\nnext layer need?", 3),
              ("plan", "ready, load, low\nversion, or CPU", 3), ("fetch", "loads first,\nthen prefetches", 1),
              ("multiply", "all experts in one\ngrouped product", 0), ("combine", "weighted sum in\na fixed order", 0)]
    with plot.figures(IMAGES / "path-of-a-batch", 1010, 320) as pages:
        for figure, theme in pages:
            axes = canvas(figure, 202, 64)
            for i, (title, text, color) in enumerate(stages):
                x = 16 + 29 * i
                box(axes, theme, x, 38, 25, 19, title, text, theme["colors"][color])
                if i:
                    arrow(axes, theme, (x - 4, 47.5), (x - 0.4, 47.5))
            axes.text(1, 49, "hidden\nstates\n[T, H]", fontsize=8.5, color=theme["ink"], va="center")
            arrow(axes, theme, (11, 47.5), (15.6, 47.5))
            arrow(axes, theme, (186.4, 47.5), (190, 47.5))
            axes.text(190.5, 49, "out\n[T, H]", fontsize=8.5, color=theme["ink"], va="center")
            tiers = [(16, 38, "disk or host's callback", "one read per record"), (66, 38, "RAM", "pinned records beside a GPU"),
                     (116, 55, "fast tier: HBM, or RAM on a CPU", "pools of blocks under one byte budget")]
            for x, width, title, text in tiers:
                box(axes, theme, x, 6, width, 15, title, text, theme["soft"], size=9)
            arrow(axes, theme, (54, 13.5), (65.6, 13.5), color=theme["colors"][1])
            arrow(axes, theme, (104, 13.5), (115.6, 13.5), color=theme["colors"][1])
            arrow(axes, theme, (115.5, 37.6), (109.8, 15), "what moves", theme["colors"][1], dashed=True)
            arrow(axes, theme, (144, 21.4), (144, 37.6), "records are read in place", theme["colors"][0])
            axes.text(16, 62, "five policies decide: routing · prefetch · residency · precision · placement", fontsize=8.5,
                      color=theme["colors"][3])


def tiers_and_bytes():
    """What a model's experts take, and how fast each tier gives them."""
    schemes = [("bf16", 16), ("w8 g128", 8.125), ("w4 g128", 4.125), ("w2 g64", 2.5)]
    weights = 48 * 128 * 3 * 2048 * 768  # Qwen3-30B-A3B
    loads = {v["strategy"]: v for v in data("h200-loads")["loads"]["groups"][0]["variants"]}
    bf16 = loads["load-on-demand:scheme=bf16"]
    link = bf16["bytes_loaded_a_step"] / bf16["step_mean_ms"] / 1e6
    copies = data("gemm-h200")["runs"][0]["copy_gbps"]["median"]
    disk = data("fate-disk")["decode disk 25%"]["groups"][0]
    expert = 3 * 2048 * 1408 * 4.125 / 8e6  # MB, Qwen1.5-MoE-A2.7B in w4a16_g128
    plot.save(str(IMAGES / "tiers-and-bytes"), [
        plot.Panel("Experts of Qwen3-30B-A3B", "", "GB", [plot.Bars("", [weights * b / 8e9 for _, b in schemes])],
                   categories=[n for n, _ in schemes], labels=True),
        plot.Panel("What a tier gives", "", "GB/s", [plot.Bars(
            "", [expert / disk["transfer_ms"], link, copies], color=1)],
            categories=["a disk", "PCIe link", "HBM, H200"], log_y=True, labels=True)], columns=2, panel_width=380)


def frontier_time():
    """Loss of perplexity against time of every strategy, a picture a model; what nothing beats is joined."""
    import frontier as measured
    import frontier_page as page
    families = {"exact cache": measured.EXACT[1:-1], "auto, auto:loss=0.005": ("auto", "auto:loss=0.005"),
                "auto that chooses the version": (measured.CHOSEN,),
                "resident": ("resident",), "graded, 5 %": ("graded:loss=0.05",), "importance": ("importance", "importance:alpha=0.3,max_mass=0.005"),
                "dynaexq": ("dynaexq",), "never-stall": ("never-stall",)}
    drawn = lambda p: max(p.loss.mean, 0.02)  # the axis is logarithmic
    for model in page.models():
        panels = []
        for link in measured.LINKS:
            for budget in measured.BUDGETS[:-1]:
                points = page.points(model, budget, link)
                lines = [plot.Line(label, [(p.ms, drawn(p)) for p in points if p.strategy in names], color=i, width=0)
                         for i, (label, names) in enumerate(families.items()) if any(p.strategy in names for p in points)]
                lines.append(plot.Line("nothing is faster and better", [(p.ms, drawn(p)) for p in page.front(points)], color=7,
                                       dash=1, markers=False, width=1))
                panels.append(plot.Panel(f"{budget} %, link {link}", "ms per step", "loss, %", lines, log_x=True, log_y=True,
                                         y_range=(0.015, 60), rules=[(page.ACCEPTED, "0.5 %")]))
        plot.save(str(IMAGES / f"frontier-time-{model}"), panels, columns=5, panel_width=210, panel_height=200)


PICTURES = [path_of_a_batch, tiers_and_bytes, frontier_time]


def main():
    IMAGES.mkdir(exist_ok=True)
    for picture in PICTURES:
        if len(sys.argv) == 1 or picture.__name__ in sys.argv[1:]:
            picture()
            print(picture.__name__)


if __name__ == "__main__":
    main()
