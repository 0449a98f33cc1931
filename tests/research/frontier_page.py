"""Tables and points of docs/results/frontier.md, from docs/results/data/frontier.json."""
import collections
import functools
import itertools
import re

import experiment
import frontier as f
import quality_lib as lib

ACCEPTED = 0.5   # percent of perplexity over bf16's
STILL = 1.01     # times what the layers take: such a step waits for nothing
RIVALS = tuple(s for s in f.EXACT if s not in ("auto", "fate"))  # where not all fits, auto is fate
Point = collections.namedtuple("Point", "ms loss spec strategy version")  # loss: percent, with its standard error


@functools.cache
def stored():
    return lib.load(f.STORED)


def models():
    """Those whose exact strategies have run in every cell."""
    last = f.spec_of("auto", f.UNIFORM[-1])
    return [m for m in f.MODELS if all(f.name_of(c, last) in stored()["cells"] for c in f.cells([m]))]


def parts_of(spec):
    """(strategy, version): without the keys that name versions, and what they name."""
    version = re.findall(r"(?:scheme|hi|lo)=([\w.-]+)", spec)
    strategy = re.sub(r"[:,](scheme|hi|lo)=[\w.-]+", "", spec)
    if ":" not in strategy and "=" in strategy:  # the first key was a version's
        strategy = strategy.replace(",", ":", 1)
    return strategy, "/".join(version)


@functools.cache
def by_cell():
    """{cell: {spec: [ms, windows' nll]}} of what the budgets hold."""
    found = collections.defaultdict(dict)
    for name, result in stored()["cells"].items():
        model, domain, budget, link, spec = name.split(" ")
        if result:
            nll = result[1] if len(result) > 1 else stored()["nll"][f"{model} {domain} {parts_of(spec)[1]}"]
            found[model, domain, int(budget), link][spec] = (result[0], nll)
    return found


def base(model, domains):
    return [v for d in domains for v in stored()["nll"][f"{model} {d} bf16"]]


def points(model, budget, link, domains=tuple(lib.DOMAINS)):
    """The strategies that ran in all the domains, fastest first: mean time, loss over all windows."""
    cells = [by_cell()[model, d, budget, link] for d in domains]
    made = []
    for spec in set.intersection(*(set(c) for c in cells)):
        nll = [v for c in cells for v in c[spec][1]]
        made.append(Point(lib.mean([c[spec][0] for c in cells]), experiment.loss_percent(base(model, domains), nll),
                          spec, *parts_of(spec)))
    return sorted(made, key=lambda p: (p.ms, p.loss.mean, p.spec))


def front(of):
    """Those that no other is both faster and better than."""
    best = []
    for p in of:
        if not best or p.loss.mean < best[-1].loss.mean - 1e-9:
            best.append(p)
    return best


def percent_of(version, model):
    return 100 * stored()["bytes"][f"{model} {version}"] / f.bf16_bytes(model)


def chosen_version(model, budget, link):
    """What `auto` that chooses the version has taken, or None where that was not run."""
    spec = stored().get("chosen", {}).get(f"{model} {budget} {link}")
    return spec and (parts_of(spec)[1] or "bf16")


def chosen_versions(model):
    found = (chosen_version(model, *cell[2:]) for cell in f.cells([model]))
    return sorted({v for v in found if v}, key=lambda v: -percent_of(v, model))


def chosen_spec(cell):
    version = chosen_version(cell[0], *cell[2:])
    return version and f.spec_of(f.CHOSEN, version)


def tuned(model):
    """{version: loss on the calibration texts}."""
    tuning = stored()["tuning"]
    bf16 = tuning[f"{model} bf16"]
    versions = dict.fromkeys((*f.VERSIONS, *chosen_versions(model)))
    return {v: experiment.loss_percent(bf16, tuning[f"{model} {v}"]) for v in versions if f"{model} {v}" in tuning}



def signed(mean):
    return experiment.signed(mean)


def told(point):
    return f"`{short(point.spec)}`: {point.ms:.1f} ms, {signed(point.loss)} %" if point else "-"


def best():
    """At each budget and link, domains together: the fastest within the loss, the least loss without waiting, and auto."""
    rows = []
    for model in models():
        layers = min(p.ms for p in points(model, 100, f.LINKS[0]))
        for budget, link in itertools.product(f.BUDGETS[:-1], f.LINKS[-1:]):
            by_spec = {p.spec: p for p in points(model, budget, link)}
            of = [p for p in by_spec.values() if not p.strategy.startswith("auto")]
            within = [p for p in of if p.loss.mean <= ACCEPTED]
            still = sorted((p for p in of if p.ms <= STILL * layers), key=lambda p: p.loss.mean)
            exact = by_spec.get(f.spec_of("auto", "bf16"))
            mine = by_spec.get(chosen_spec((model, None, budget, link)))
            fastest, least = next(iter(within), None), next(iter(still), None)
            same = mine and fastest and (mine.ms, mine.version) == (fastest.ms, fastest.version)
            rows.append([model, f"{budget} %", told(fastest), "the same" if least and least is fastest else told(least),
                         f"{exact.ms:.1f}" if exact else "-", "the same" if same else
                         f"{short(mine.version)}: {mine.ms:.1f} ms, {signed(mine.loss)} %" if mine else "-"])
    return experiment.table(["model", "budget", f"fastest within {ACCEPTED} %", "least loss, no waiting",
                             "`auto` in bf16, ms", "`auto` that chooses"], rows)


# `auto` against the fastest other of a cell.

Verdict = collections.namedtuple("Verdict", "share cell rival mine")


def against(cell, spec, rivals):
    """Time of the fastest rival over that of `spec`, or None."""
    of = points(*cell[:1], *cell[2:], (cell[1],))
    mine = next((p for p in of if p.spec == spec), None)
    theirs = [p for p in of if p.spec != spec and not p.strategy.startswith("auto") and rivals(p)]
    return Verdict(theirs[0].ms / mine.ms, cell, theirs[0], mine) if mine and theirs else None


def same_version(cells):
    """In each version that the budget does not hold whole."""
    found = []
    for cell in cells:
        for version in f.VERSIONS:
            if f.spec_of("resident", version) not in by_cell()[cell]:
                found.append(against(cell, f.spec_of("auto", version), lambda p, v=version: p.version == v and p.strategy in RIVALS))
    return [v for v in found if v]


def within_loss(cells, spec_of_cell, rivals=lambda p: True):
    found = [against(c, spec_of_cell(c), lambda p: p.loss.mean <= ACCEPTED and rivals(p)) for c in cells]
    return [v for v in found if v]


def bounded_spec(_):
    return f.spec_of(f.LOSSY[0][0], "bf16")



CHOOSES = "`auto:loss=0.005,calibration=FILE`"


def comparisons():
    """[what it says, verdicts]."""
    cells = f.cells(models())
    return [("exact: `auto` in each version, against that version's others but `fate`", same_version(cells)),
            (f"within {ACCEPTED} %: {CHOOSES}, against all versions", within_loss(cells, chosen_spec)),
            (f"within {ACCEPTED} %: `auto:loss=0.005`, against all versions", within_loss(cells, bounded_spec))]


def verdicts():
    rows = []
    for what, found in comparisons():
        if found:
            shares = [v.share for v in found]
            kept = sum(v.mine.loss.mean <= ACCEPTED for v in found) if what.startswith("within") else "-"
            rows.append([what, str(len(shares)), str(sum(s >= 0.99 for s in shares)), str(kept), f"{lib.mean(shares):.3f}",
                         f"{min(shares):.3f}"])
    return experiment.table(["time of the fastest other over that of `auto`", "cells", "within 1 %",
                             f"own loss within {ACCEPTED} %", "mean", "least"], rows)


def short(spec):
    """With w8 for w8a16_g128, and so on."""
    return re.sub(r"(w\d)a16_g\d+(_asym)?", r"\1", spec)


