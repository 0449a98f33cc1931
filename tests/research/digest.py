"""The tables of docs/results and README.md, made from docs/results/data. pages.py puts them there."""
import json
import math

import envelope
import experiment
import house
import quality_allocator as plans
import quality_lib as lib
import report


def data(name):
    return json.loads((report.DATA / f"{name}.json").read_text(encoding="utf-8"))


def two(x):
    return f"{x:.2f}"


# Two precisions, quantization

def scheme_losses():
    """Loss over bf16 of every scheme and quantizer, pooled over domains."""
    quantizers = ["rtn", "hqq", "gptq", "gptq+hadamard"]
    rows = []
    for model, entry in data("quality-schemes").items():
        base = lib.pooled(entry["bf16"]["nll"])
        for scheme in ("w4a16_g128", "w3a16_g128_asym", "w2a16_g128_asym"):
            cells = [lib.difference(lib.pooled(entry[f"{scheme} {q}"]["nll"]), base) for q in quantizers]
            rows.append([model, scheme, f"{entry[f'{scheme} rtn']['stored_bits']:.2f}"] +
                        [f"{m:+.4f} ± {half:.4f}" for m, half in cells])
    return experiment.table(["model", "scheme", "bits", *quantizers], rows)


def plan_gains():
    """Gain of plans over uniform schemes of the same bytes."""
    entries, rows = data("quality-plans"), []
    for prefix, model, widths in (("", "small-moe", plans.UNIFORM), ("tiny ", "tiny-moe", plans.TINY)):
        for bits in widths:
            row = [model, bits]
            for how in ("gptq", "gptq hadamard", "hqq"):
                names = [f"{prefix}{bits} {kind} {how}" for kind in ("plan", "uniform")]
                if not all(n in entries for n in names):
                    row.append("-")
                    continue
                m, half = lib.difference(*(lib.pooled(entries[n]["nll"]) for n in names))
                row.append(f"{m:+.4f} ± {half:.4f} ({100 * (math.exp(m) - 1):+.1f} %)")
            rows.append(row)
    return experiment.table(["model", "bits", "gptq", "gptq, Hadamard", "hqq"], rows)





# One strategy against the best of the others, cell by cell

def envelope_cells():
    return data("envelope")["cells"]


def envelope_exact():
    table = experiment.table(["budget", *envelope.LINKS.values()], envelope.exact_rows(envelope_cells()))
    return f"{table}\n\n{envelope_behind()}"


def behind_text(cells):
    values = envelope.shares(cells, "exact", envelope.OURS, envelope.EXACT_RIVALS)
    return (f"In {len(values)} cells, {sum(v < 0.99 for v in values)} are below 0.99, {sum(v < 0.95 for v in values)} below 0.95. "
            f"The mean is {lib.mean(values):.3f}, the least {min(values):.3f}.")


def envelope_behind():
    """How many cells lose, and by which budgets and batches."""
    cells = envelope_cells()
    found = [c for _, c in envelope.behind(cells)]
    named = lambda i: ", ".join(str(v) for v in sorted({c[i] for c in found}))
    return f"{behind_text(cells)} Those below 0.99 have budgets of {named(3)} % and batches of {named(2)}."


def architecture():
    return house.show()
