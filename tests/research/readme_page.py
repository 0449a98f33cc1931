"""The table of README.md: one row a claim, from data that keeps its samples, with the cells that are lost.

A row has one commit and one machine, or the check refuses it (origins.py).
"""
import grouped_core as core
import origins
import sharing_h200 as sharing_data
import side_by_side as sitting

SHAPE = "Qwen3-30B-A3B's shape"
TOKENS = (8, 512, 8192)
SITTING = "readme"  # of readme_sitting.py


def grouped():
    times = core.times_of_rounds(origins.load(SITTING)["grouped"]["rounds"])
    of = lambda name: ", ".join(core.us(times[name][t]) for t in TOKENS)
    lost = [f"{ours}: {cell}" for name, ours, rivals in (("bf16", "bf16", ("Triton bf16", "torch bf16")),
                                                         ("w4a16_g128", "w4", ("Marlin w4",)))
            for cell in core.lost(times, name, rivals, TOKENS)]
    return (f"Grouped product, {SHAPE}, 8, 512, 8,192 tokens, us", f"bf16 {of('bf16')}; w4 {of('w4a16_g128')}",
            f"Triton bf16 {of('Triton bf16')}; torch bf16 {of('torch bf16')}; Marlin w4 {of('Marlin w4')}",
            "; ".join(lost) or "none", (SITTING, "grouped"))


def served():
    """Strategies of this library in one graph a step: `fate` beside the best other exact one."""
    run = origins.load(SITTING)["served"]["runs"]["qwen3-30b:12 1 graph"]
    budgets, others = ("25%", "50%", "90%"), ("on-demand", "on-demand+importance.residency")
    ms = lambda b, s: run["cells"][f"{b} {s}"][0]
    best = {b: min(others, key=lambda s: ms(b, s)) for b in budgets}
    lost = [f"{b[:-1]} % to `{best[b]}`" for b in budgets if ms(b, best[b]) < ms(b, "fate")]
    text = lambda s: ", ".join(f"{ms(b, s):.2f}" for b in budgets)
    return ("Decode in one CUDA graph a step, 12 layers, w4, batch 1, 25, 50, 90 % of the experts in HBM, ms",
            f"`fate` {text('fate')}", f"LRU (`on-demand`, also ours) {text('on-demand')}; with eviction by score "
            f"{text('on-demand+importance.residency')}", "; ".join(lost) or "none", (SITTING, "served"))


def sharing():
    """Misses shared with the CPU beside the link alone, batch 1 and 8, uniform routing."""
    cells = [(batch, budget) for batch in (1, 8) for budget in ("25%", "50%")]
    runs = origins.load(SITTING)["sharing"]["runs"]
    ms = lambda s: ", ".join(f"{sharing_data.time(runs[f'free uniform {b}']['cells'][f'{budget} {s}']):.2f}" for b, budget in cells)
    lost = sharing_data.lost(runs, "free")
    return ("Decode in one CUDA graph a step, 12 layers, w4, uniform routing, batch 1 and 8, 25 and 50 % of the experts in HBM, ms",
            f"misses shared with the CPU {ms(sharing_data.SHARED)}", f"every miss over the link (also ours) {ms(sharing_data.ALONE)}",
            "; ".join(lost) or "none", (SITTING, "sharing"))


def origin(what, source):
    commits, machines = origins.origin([source])
    if len(commits) != 1 or len(machines) > 1:
        raise origins.Refused(f"README, {what}: one commit and one machine, not {', '.join(commits + machines) or 'none'}")
    return ", ".join([*commits, *(machines or ["NVIDIA H200"])])


def table():
    rows = [(*cells, origin(cells[0], source)) for *cells, source in (grouped(), served(), sharing())]
    rows += (row for data in sitting.sittings() for row in sitting.readme_rows(data))
    head = ["what", "libmoert", "beside it", "lost", "measured"]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))
