"""Charts for the documentation, as SVG, with nothing but the standard library.

    import plot
    plot.save("docs/images/loss", [plot.Panel("batch 1", "alpha", "perplexity, %", [
        plot.Line("importance", [(0, 0), (0.3, 0.4)], errors=[0, 0.1])])])

writes docs/images/loss-light.svg and -dark.svg; `picture()` is the HTML that shows the one that
fits the reader's theme. The same input gives the same bytes.
"""
import dataclasses
import html
import math

THEMES = {
    "light": {"back": "#ffffff", "ink": "#1f2328", "faint": "#d8dee4", "soft": "#59636e",
              "colors": ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#57606a",
                         "#0f8a8a"]},
    "dark": {"back": "#0d1117", "ink": "#e6edf3", "faint": "#30363d", "soft": "#9198a1",
             "colors": ["#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#ff7b72", "#d29922", "#8b949e",
                        "#39c5cf"]},
}
DASHES = ["", "6 3", "2 3", "8 3 2 3"]
FONT = "font-family='-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"


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
    rules: list = dataclasses.field(default_factory=list)   # (y, text): horizontal lines
    marks: list = dataclasses.field(default_factory=list)   # (x, text): vertical lines


def ticks(low, high, about=5):
    """Round numbers that cover [low, high]."""
    span = high - low
    if span <= 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / about))
    step *= min((1, 2, 5, 10), key=lambda m: abs(span / (step * m) - about))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def text_of(value):
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.6g}"


class Canvas:
    def __init__(self, width, height, theme):
        self.theme = theme
        self.parts = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
                      f"viewBox='0 0 {width} {height}' {FONT} font-size='12'>",
                      f"<rect width='{width}' height='{height}' fill='{theme['back']}'/>"]

    def line(self, x1, y1, x2, y2, color, width=1.0, dash=""):
        dash = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' "
                          f"stroke='{color}' stroke-width='{width:g}'{dash}/>")

    def text(self, x, y, text, color, anchor="middle", size=12, turn=False, bold=False):
        turned = f" transform='rotate(-90 {x:.1f} {y:.1f})'" if turn else ""
        weight = " font-weight='600'" if bold else ""
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}' fill='{color}' text-anchor='{anchor}' "
                          f"font-size='{size}'{weight}{turned}>{html.escape(text)}</text>")

    def rect(self, x, y, width, height, color):
        self.parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' "
                          f"height='{max(height, 0):.1f}' fill='{color}'/>")

    def path(self, points, color, width, dash):
        dash = f" stroke-dasharray='{dash}'" if dash else ""
        where = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f"<path d='{where}' fill='none' stroke='{color}' "
                          f"stroke-width='{width:g}' stroke-linejoin='round'{dash}/>")

    def dot(self, x, y, color):
        self.parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.6' fill='{color}'/>")

    def svg(self):
        return "\n".join(self.parts + ["</svg>", ""])


def data_range(panel, axis):
    values = []
    for series in panel.series:
        if isinstance(series, Bars):
            errors = series.errors or [0] * len(series.values)
            pairs = [(v, e) for v, e in zip(series.values, errors) if v is not None]
            values += [0] if axis else []
        else:
            errors = (series.errors or [0] * len(series.points)) if axis else [0] * len(series.points)
            pairs = [(p[axis], e) for p, e in zip(series.points, errors) if p[1] is not None]
        values += [v + s * (e or 0) for v, e in pairs for s in (-1, 1)]
    if axis:
        values += [y for y, _ in panel.rules]
    low, high = (min(values), max(values)) if values else (0, 1)
    if low == high:
        low, high = low - 0.5, high + 0.5
    if axis:
        pad = 0.05 * (high - low)
        low, high = (low if low == 0 else low - pad), high + pad
    return low, high


def draw_panel(canvas, panel, left, top, width, height):
    theme = canvas.theme
    low_y, high_y = panel.y_range or data_range(panel, 1)
    if panel.categories:
        low_x, high_x = -0.5, len(panel.categories) - 0.5
    else:
        low_x, high_x = panel.x_range or data_range(panel, 0)
    scale = math.log if panel.log_x else (lambda v: v)

    def at_x(x):
        return left + width * (scale(x) - scale(low_x)) / (scale(high_x) - scale(low_x))

    def at_y(y):
        y = min(max(y, low_y), high_y)
        return top + height * (1 - (y - low_y) / (high_y - low_y))

    canvas.text(left + width / 2, top - 10, panel.title, theme["ink"], size=13, bold=True)
    for y in ticks(low_y, high_y):
        canvas.line(left, at_y(y), left + width, at_y(y), theme["faint"])
        canvas.text(left - 6, at_y(y) + 4, text_of(y), theme["soft"], "end", 11)
    if panel.categories:
        for i, name in enumerate(panel.categories):
            canvas.text(at_x(i), top + height + 16, name, theme["soft"], size=11)
    else:
        shown = ticks(low_x, high_x)
        if panel.log_x:
            shown = sorted({x for s in panel.series for x, _ in s.points})
        for x in shown:
            canvas.line(at_x(x), top + height, at_x(x), top + height + 4, theme["soft"])
            canvas.text(at_x(x), top + height + 16, text_of(x), theme["soft"], size=11)
    canvas.line(left, top + height, left + width, top + height, theme["soft"])
    canvas.text(left + width / 2, top + height + 34, panel.x_label, theme["ink"])
    canvas.text(left - 44, top + height / 2, panel.y_label, theme["ink"], turn=True)
    for x, text in panel.marks:
        canvas.line(at_x(x), top, at_x(x), top + height, theme["soft"], 1, "3 3")
        canvas.text(at_x(x) + 3, top + 11, text, theme["soft"], "start", 10)
    for y, text in panel.rules:
        canvas.line(left, at_y(y), left + width, at_y(y), theme["soft"], 1.2, "4 3")
        canvas.text(left + width - 3, at_y(y) - 4, text, theme["soft"], "end", 10)

    bars = [s for s in panel.series if isinstance(s, Bars)]
    for i, series in enumerate(panel.series):
        color = theme["colors"][(series.color if series.color is not None else i)
                                % len(theme["colors"])]
        errors = series.errors
        if isinstance(series, Bars):
            each = 0.8 * width / len(panel.categories) / len(bars)
            for c, value in enumerate(series.values):
                if value is None:
                    continue
                x = at_x(c) + each * (bars.index(series) - len(bars) / 2)
                zero = at_y(max(0, low_y))
                canvas.rect(x, min(at_y(value), zero), each * 0.92, abs(at_y(value) - zero), color)
                if errors and errors[c]:
                    middle = x + each * 0.46
                    canvas.line(middle, at_y(value - errors[c]), middle, at_y(value + errors[c]),
                                theme["ink"])
            continue
        run = []
        for j, (x, y) in enumerate(series.points + [(None, None)]):
            if y is None:
                if len(run) > 1:
                    canvas.path(run, color, series.width, DASHES[series.dash % len(DASHES)])
                run = []
                continue
            if errors and errors[j]:
                canvas.line(at_x(x), at_y(y - errors[j]), at_x(x), at_y(y + errors[j]), color)
            if series.markers:
                canvas.dot(at_x(x), at_y(y), color)
            run.append((at_x(x), at_y(y)))


def legend_rows(panels, width):
    """Every series' name once, in rows that fit. [[(name, color, dash, is_bar)]]"""
    rows, used, seen = [[]], 0, set()
    for panel in panels:
        for i, series in enumerate(panel.series):
            if not series.name or series.name in seen:
                continue
            seen.add(series.name)
            need = 40 + 6.6 * len(series.name)
            if used + need > width and rows[-1]:
                rows.append([])
                used = 0
            used += need
            rows[-1].append((series.name, i if series.color is None else series.color,
                             getattr(series, "dash", 0), isinstance(series, Bars)))
    return rows


def render(panels, theme, columns, panel_width, panel_height):
    columns = min(columns, len(panels))
    cell_x, cell_y = panel_width + 76, panel_height + 72
    rows = (len(panels) + columns - 1) // columns
    width = cell_x * columns + 16
    legend = legend_rows(panels, width - 80)
    height = cell_y * rows + 20 * len(legend) + 14
    canvas = Canvas(width, height, theme)
    for i, panel in enumerate(panels):
        draw_panel(canvas, panel, 62 + cell_x * (i % columns), 28 + cell_y * (i // columns),
                   panel_width, panel_height)
    y = cell_y * rows + 14
    for row in legend:
        x = 62
        for name, color, dash, is_bar in row:
            ink = theme["colors"][color % len(theme["colors"])]
            if is_bar:
                canvas.rect(x + 4, y - 5, 14, 9, ink)
            else:
                canvas.line(x, y, x + 22, y, ink, 2, DASHES[dash % len(DASHES)])
            canvas.text(x + 27, y + 4, name, theme["ink"], "start")
            x += 40 + 6.6 * len(name)
        y += 20
    return canvas.svg()


def save(stem, panels, columns=3, panel_width=300, panel_height=200):
    """Writes stem-light.svg and stem-dark.svg."""
    for name, theme in THEMES.items():
        with open(f"{stem}-{name}.svg", "w", encoding="utf-8") as out:
            out.write(render(panels, theme, columns, panel_width, panel_height))


def picture(stem, alt):
    """HTML for Markdown: the variant that fits the reader's theme. `stem` relative to the page."""
    return (f'<picture><source media="(prefers-color-scheme: dark)" srcset="{stem}-dark.svg">'
            f'<img alt="{html.escape(alt)}" src="{stem}-light.svg"></picture>')
