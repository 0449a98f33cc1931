"""Charts as SVG, light and dark, by matplotlib (pip install matplotlib).

    import plot
    plot.save("build/report/images/loss", [plot.Panel("batch 1", "alpha", "perplexity, %", [
        plot.Line("importance", [(0, 0), (0.3, 0.4)], errors=[0, 0.1])])])

writes loss-light.svg and loss-dark.svg; `picture()` is the HTML that shows the one that fits the
reader's theme. The same input and matplotlib give the same bytes.
"""
import contextlib
import dataclasses
import html

THEMES = {
    "light": {"back": "#ffffff", "ink": "#1f2328", "faint": "#d8dee4", "soft": "#59636e", "fill": "#f3f6f9",
              "colors": ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#57606a",
                         "#0f8a8a"]},
    "dark": {"back": "#0d1117", "ink": "#e6edf3", "faint": "#30363d", "soft": "#9198a1", "fill": "#161b22",
             "colors": ["#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#ff7b72", "#d29922", "#8b949e",
                        "#39c5cf"]},
}
DASHES = ["-", "--", ":", "-."]


@dataclasses.dataclass
class Line:
    """A series. Points with a y of None break the line; errors are half heights of bars."""
    name: str
    points: list
    errors: list = None
    color: int = None   # index; None: the series' own
    dash: int = 0
    markers: bool = True
    width: float = 1.8


@dataclasses.dataclass
class Bars:
    """Grouped bars over the panel's categories; None leaves a gap."""
    name: str
    values: list
    errors: list = None
    color: int = None


@dataclasses.dataclass
class Panel:
    title: str
    x_label: str
    y_label: str
    series: list
    categories: list = None   # of bars; the x axis then has their names
    x_range: tuple = None     # None: of the data
    y_range: tuple = None
    log_x: bool = False
    log_y: bool = False
    rules: list = dataclasses.field(default_factory=list)   # (y, text): horizontal lines
    marks: list = dataclasses.field(default_factory=list)   # (x, text): vertical lines
    labels: bool = False      # the height of every bar, above it


def theme_settings(theme):
    return {"figure.facecolor": theme["back"], "axes.facecolor": theme["back"], "savefig.facecolor": theme["back"],
            "text.color": theme["ink"], "axes.labelcolor": theme["soft"], "axes.edgecolor": theme["faint"],
            "xtick.color": theme["soft"], "ytick.color": theme["soft"], "grid.color": theme["faint"],
            "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10, "font.size": 9,
            "axes.titleweight": "bold", "legend.frameon": False, "svg.fonttype": "none",
            "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "moert"}


@contextlib.contextmanager
def figures(base, width, height):
    """For each theme a (figure, theme) to draw into, written when the block ends:
    `with figures(...) as pages: for figure, theme in pages: ...`. Sizes are in pixels."""
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    def pages():
        for name, theme in THEMES.items():
            with matplotlib.rc_context(theme_settings(theme)):
                figure = plt.figure(figsize=(width / 100, height / 100), dpi=100)
                yield figure, theme
                figure.savefig(f"{base}-{name}.svg", metadata={"Date": None, "Creator": None})
                plt.close(figure)
    yield pages()


def draw_bars(axes, panel, theme):
    groups = [s for s in panel.series if isinstance(s, Bars)]
    width = 0.8 / len(groups)
    for i, bars in enumerate(groups):
        color = theme["colors"][i if bars.color is None else bars.color]
        at = [c + (i - (len(groups) - 1) / 2) * width for c in range(len(bars.values))]
        known = [(x, v, e) for x, v, e in zip(at, bars.values, bars.errors or [0] * len(at)) if v is not None]
        drawn = axes.bar([x for x, _, _ in known], [v for _, v, _ in known], width * 0.92, color=color,
                         label=bars.name, yerr=[e for _, _, e in known] if bars.errors else None,
                         error_kw={"ecolor": theme["soft"], "elinewidth": 1})
        if panel.labels:
            axes.bar_label(drawn, fmt=lambda v: f"{v:.0f}" if v >= 100 else f"{v:.3g}", fontsize=7, color=theme["soft"], padding=1)
    axes.set_xticks(range(len(panel.categories)), panel.categories,
                    rotation=20 if max(map(len, panel.categories)) > 12 else 0)


def draw_panel(axes, panel, theme):
    if panel.categories:
        draw_bars(axes, panel, theme)
    lines = [s for s in panel.series if isinstance(s, Line)]
    for i, line in enumerate(lines):
        color = theme["colors"][(i if line.color is None else line.color) % len(theme["colors"])]
        xs = [x for x, _ in line.points]
        ys = [float("nan") if y is None else y for _, y in line.points]
        axes.errorbar(xs, ys, yerr=line.errors, color=color, linewidth=line.width, label=line.name,
                      linestyle=DASHES[line.dash % len(DASHES)] if line.width else "none",
                      marker="o" if line.markers else None, markersize=3.5, elinewidth=0.8)
    for y, text in panel.rules:
        axes.axhline(y, color=theme["soft"], linewidth=0.8, linestyle="--")
        axes.text(1, y, text, color=theme["soft"], fontsize=7, ha="right", va="bottom",
                  transform=axes.get_yaxis_transform())
    for x, text in panel.marks:
        axes.axvline(x, color=theme["soft"], linewidth=0.8, linestyle="--")
        axes.text(x, 1, text, color=theme["soft"], fontsize=7, va="top", transform=axes.get_xaxis_transform())
    if panel.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    if panel.x_range:
        axes.set_xlim(panel.x_range)
    if panel.y_range:
        axes.set_ylim(panel.y_range)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(axis="y", linewidth=0.6)
    axes.set_axisbelow(True)


def save(base, panels, columns=3, panel_width=300, panel_height=220):
    """Draws the panels in rows of `columns`, one legend below all."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with figures(base, columns * panel_width + 40, rows * (panel_height + 70) + 30) as pages:
        for figure, theme in pages:
            figure.set_layout_engine("constrained")
            grid = figure.subplots(rows, columns, squeeze=False)
            entries = {}
            for i, axes in enumerate(grid.flat):
                if i >= len(panels):
                    axes.axis("off")
                    continue
                draw_panel(axes, panels[i], theme)
                entries.update({text: handle for handle, text in zip(*axes.get_legend_handles_labels()) if text})
            if len(entries) > 1:
                figure.legend(entries.values(), entries.keys(), loc="outside lower center",
                              ncols=min(len(entries), 4))


def picture(base, alt):
    """HTML for Markdown: the picture of the reader's theme."""
    return (f'<picture><source media="(prefers-color-scheme: dark)" srcset="{base}-dark.svg">'
            f'<img alt="{html.escape(alt)}" src="{base}-light.svg"></picture>')
