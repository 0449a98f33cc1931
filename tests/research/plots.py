#!/usr/bin/env python3
"""Draws the pictures of the documentation, docs/images/*.svg, from docs/results/data.

    pip install matplotlib
    tests/research/plots.py [NAME...]

Each picture is a function here, named as its file.
"""
import json
import math
import sys

import plot
import proof_page
import report

IMAGES = report.ROOT / "docs" / "images"


def data(name):
    return json.loads((report.DATA / f"{name}.json").read_text(encoding="utf-8"))


def rows(name, table):
    return data(name)["tables"][table]["rows"]


def number(text):
    """The first number of a cell: `**771 (966)**` is 771."""
    cleaned = text.replace("*", "").replace(",", "").strip().split(" ")[0]
    return float(cleaned) if cleaned else None


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


def decode_beside():
    """Whole decoders of others on one H200, and this library's under a budget."""
    whole = rows("rivals", "Whole decoders")
    shares = [float(r[0].split(",")[-1].replace("%", "").split("GiB")[0]) if "%" in r[0] else 0 for r in whole]
    lines = [plot.Line("llama.cpp b11434", [(s, number(r[1])) for s, r in zip(shares, whole)]),
             plot.Line("ik_llama.cpp", [(s, number(r[4])) for s, r in zip(shares, whole)])]
    under = rows("rivals", "Decoding under a budget")
    at = [float(r[0].split("%")[0]) for r in under]
    ours = [plot.Line(name, [(x, number(r[i])) for x, r in zip(at, under) if r[i] not in ("", "-")], color=c, dash=d)
            for name, i, c, d in (("on-demand", 1, 2, 0), ("fate", 2, 3, 0), ("importance, alpha 0.3 (lossy)", 3, 4, 0),
                                  ("perfect prefetch over LRU", 4, 6, 1))]
    resident = number(under[-1][1])
    ours = [plot.Line(line.name, [p for p in line.points if p[0] < 100], color=line.color, dash=line.dash)
            for line in ours]
    plot.save(str(IMAGES / "decode-beside-others"), [
        plot.Panel("Others: whole decoder, uniform routing", "experts in HBM, %", "tokens/s", lines, y_range=(0, 300)),
        plot.Panel("libmoert: 12 layers, routing with locality", "experts in HBM, %", "ms a step", ours, y_range=(0, 2.2),
                   rules=[(resident, "everything resident")])], columns=2, panel_width=400)


def beside_four():
    """Decoding with a quarter of the experts in GPU memory, by program."""
    bars = proof_page.bars()
    plot.save(str(IMAGES / "beside-four"), [plot.Panel(
        "Decode, batch 1, a quarter of the experts in GPU memory", "", "tokens/s",
        [plot.Bars("", [rate for _, rate in bars])], categories=[name for name, _ in bars], labels=True)],
        panel_width=820, panel_height=260)


def prefill_beside():
    """The grouped product, by tokens: time over the floor."""
    table = rows("rivals", "The grouped product, prompts included")
    columns = data("rivals")["tables"]["The grouped product, prompts included"]["columns"]
    wanted = [("ours bf16", "libmoert bf16", 0, 0), ("ours w4", "libmoert w4", 0, 1), ("Triton bf16", "Triton bf16", 1, 0),
              ("Triton w4", "Triton w4", 1, 1), ("torch bf16", "torch bf16", 2, 0)]
    lines = [plot.Line(label, [(number(r[0]), number(r[columns.index(name)])) for r in table], color=c, dash=d)
             for name, label, c, d in wanted]
    panel = plot.Panel("Grouped product of one layer, one H200", "tokens", "us", lines, log_x=True, log_y=True)
    plot.save(str(IMAGES / "prefill-beside-others"), [panel], panel_width=620, panel_height=300)


def cpu_beside():
    table = rows("cpu-kernels", "ggml, 16 cores")
    table = [r for r in table if r[0].isdigit()]
    plot.save(str(IMAGES / "cpu-beside-ggml"), [plot.Panel(
        "Speed over ggml's plain paths, 16 cores with AMX", "tokens", "times as fast",
        [plot.Bars("w4a8 over Q4_0", [float(r[4]) for r in table]),
         plot.Bars("w8a8 over Q8_0", [float(r[8]) for r in table])],
        categories=[r[0] for r in table], labels=True, rules=[(1, "ggml")])], panel_width=560)


def frontier():
    """Perplexity against bytes: uniform schemes, plans and two precisions."""
    import quality_dynaexq as q
    import quality_dynaexq_page as page
    stored = data("quality-dynaexq")
    panels = []
    for model in ("tiny-moe", "small-moe"):
        equal = stored["equal"][model]
        points = {"uniform": sorted((equal["uniform"][s]["bytes"] / 2**20, page.perplexity(equal["uniform"][s]["nll"]))
                                    for s in q.SCHEMES)}
        for pair, share in q.cells():
            cell = equal[f"{pair[0]} {pair[1]} {share}"]
            for method, label in (("dynaexq", "dynaexq"), ("plan", "plan"), ("never-stall", "never-stall")):
                if method in cell:
                    points.setdefault(label, []).append(
                        (cell["dynaexq"]["bytes"] / 2**20, page.perplexity(cell[method]["nll"])))
        panels.append(plot.Panel(model, "MiB of experts", "perplexity", [
            plot.Line(name, sorted(of), color=i, width=1.8 if name == "uniform" else 0)
            for i, (name, of) in enumerate(points.items())], log_x=True))
    plot.save(str(IMAGES / "frontier"), panels, columns=2, panel_width=400, panel_height=260)


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


def strategies_h200():
    """Time of a decode step over on-demand's, every cell of the H200 runs."""
    import h200_page as page
    names = {"fate": f"fate:scheme={page.W4}", "activation-path": f"activation-path:scheme={page.W4}"}
    cells = page.fate_cells(page.load("fate"), "decode")
    panels = []
    for shape in page.SHAPES:
        lines = []
        for color, (label, spec) in enumerate(names.items()):
            for dash, link in enumerate((0, 16, 4)):
                points = [(float(b.rstrip("%")), known[spec]["step_mean_ms"] /
                           known[f"on-demand:scheme={page.W4}"]["step_mean_ms"])
                          for s, l, b, known, _ in cells if s == shape and l == link and spec in known]
                lines.append(plot.Line(f"{label}, {page.link_name(link)}", points, color=color, dash=dash))
        panels.append(plot.Panel(shape, "experts in HBM, %", "time over on-demand's", lines, rules=[(1, "")]))
    importance = page.importance_groups(page.load("importance"))
    bars = []
    cells = [(f"{b}, {page.link_name(l)}", k) for _, l, b, k in importance]
    order = list(dict.fromkeys(name for name, _ in cells))
    for color, (label, spec) in enumerate((("fate", "fate"), ("score eviction", "on-demand+importance.residency"),
                                           ("hybrimoe-like", "hybrimoe-like"), ("importance, alpha 0.1", "importance"))):
        values = []
        for name in order:
            found = [k[spec]["step_mean_ms"] / k["on-demand"]["step_mean_ms"] for n, k in cells if n == name and spec in k]
            values.append(math.exp(sum(map(math.log, found)) / len(found)) if found else None)
        bars.append(plot.Bars(label, values, color=color + 2))
    panels.append(plot.Panel("40 %, by batch and link", "", "time over on-demand's", bars, categories=order))
    plot.save(str(IMAGES / "strategies-h200"), panels, columns=3, panel_width=330, panel_height=250)


PICTURES = [path_of_a_batch, tiers_and_bytes, decode_beside, beside_four, prefill_beside, cpu_beside, frontier,
            frontier_time, strategies_h200]


def main():
    IMAGES.mkdir(exist_ok=True)
    for picture in PICTURES:
        if len(sys.argv) == 1 or picture.__name__ in sys.argv[1:]:
            picture()
            print(picture.__name__)


if __name__ == "__main__":
    main()
