"""Reports the figures that quality_dynaexq.py has kept: build/report/dynaexq.md."""
import math

import experiment
import plot
import quality_dynaexq as q
import quality_lib as lib
import report

SHIFT_METHODS = ["static low", "static mixed, first domain", "static mixed, offline", "dynaexq", "static high"]
BETA, INTERVAL_MS = 0.85, 200  # dynaexq's defaults


def short(scheme):
    return scheme.split("a16")[0]


def pair_name(pair):
    return f"({short(pair[0])}, {short(pair[1])})"


def mib(size):
    return f"{size / 2**20:.2f}"


def perplexity(nll):
    return math.exp(lib.mean(nll))


def recovered(lo, hi, other):
    """Share of the loss between lo and hi that `other` recovers, percent; the error is the
    numerator's, from paired differences."""
    gap = lib.mean(lo) - lib.mean(hi)
    diff = experiment.mean_of([a - b for a, b in zip(lo, other, strict=True)])
    return experiment.Mean(100 * diff.mean / gap, 100 * diff.error / gap, diff.n)


def gain_ratio(lo, mine, bound):
    """Gain over lo of `mine` as a share of that of `bound`, percent, with its error."""
    gain = [a - b for a, b in zip(lo, mine, strict=True)]
    best = [a - b for a, b in zip(lo, bound, strict=True)]
    ratio = sum(gain) / sum(best)
    error = experiment.mean_of([g - ratio * b for g, b in zip(gain, best, strict=True)]).error
    return experiment.Mean(100 * ratio, 100 * error / lib.mean(best), len(gain))


def of_cell(equal, pair, share):
    cell = equal[f"{pair[0]} {pair[1]} {share}"]
    lo, hi = (equal["uniform"][s]["nll"] for s in (pair[1], pair[0]))
    return cell, lo, hi


def equal_table(equal):
    rows = []
    for pair, share in q.cells():
        cell, lo, hi = of_cell(equal, pair, share)
        values = {m: recovered(lo, hi, cell[m]["nll"]) for m in q.METHODS if m in cell}
        ratio = gain_ratio(lo, cell["dynaexq"]["nll"], cell["oracle"]["nll"])
        size = cell["dynaexq"]["bytes"]
        fits = [s for s in q.SCHEMES if equal["uniform"][s]["bytes"] <= size]
        best = max(fits, key=lambda s: equal["uniform"][s]["bytes"])
        same = recovered(lo, hi, equal["uniform"][best]["nll"])
        rows.append([pair_name(pair), f"{100 * share:g} %", mib(size)] +
                    [f"{values[m].mean:.0f} ± {values[m].error:.0f}" if m in values else ""
                     for m in q.METHODS] +
                    [f"{ratio.mean:.1f} ± {ratio.error:.1f}",
                     f"{short(best)} {mib(equal['uniform'][best]['bytes'])}: {same.mean:.0f}",
                     f"{100 * cell['never-stall']['low_answers']:.0f}" if "never-stall" in cell else ""])
    return experiment.table(["hi, lo", "n_hi", "MiB"] + q.METHODS +
                            ["dynaexq, % of oracle's gain", "uniform that fits, MiB: %",
                             "never-stall: lookups low, %"], rows)


def uniform_table(equal):
    return experiment.table(["scheme", "MiB", "perplexity"],
                            [[s, mib(equal["uniform"][s]["bytes"]),
                              f"{perplexity(equal['uniform'][s]['nll']):.3f}"] for s in q.SCHEMES])


def quality_section(data):
    models = list(data["equal"])
    tokens = len(q.DOMAINS) * (q.WINDOWS - q.WARM) * (q.WINDOW - 1)
    steps = ", ".join(f"{data['step_ms'][m]:g} ms of {m}" for m in models)
    parts = [f"""## Two precisions at equal bytes

Every expert is resident in a low version; what the budget leaves buys high versions of some. Who gets them decides the quality: nobody
(static low), a set by the frequencies of calibration text (static mixed), the set that the very stream turns out to use most (oracle:
known only in hindsight), the online choice (`dynaexq`), or a cache (`never-stall`). Beside them a plan by sensitivity
(`moert-pack allocate --loss relative`, one scheme a linear block, {len(q.PLAN_SCHEMES)} candidates from bf16 to w2) of the same stored bytes.

Share of the loss between static low and static high that is recovered, percent; ± one standard error, paired. Teacher-forced decode, one token a
step, virtual clock (profile `reference`: a step takes {steps}; decisions every {INTERVAL_MS} ms), link {q.LINK_GBPS:g} GB/s: a bf16 expert
of tiny-moe takes 0.6 ms, as one of Qwen3-30B-A3B at 16 GB/s. Everything quantized by HQQ. {", ".join(q.DOMAINS)}, of each {(q.WINDOWS - q.WARM) * q.WINDOW:,} tokens after
{q.WARM * q.WINDOW} that are not counted: {tokens:,} scored tokens a cell. Frequencies come from {q.FREQUENCY_TOKENS:,} tokens of training text
(`moert-pack calibrate`), plans from {q.PLAN_TOKENS:,}, a third of each domain. MiB: blocks held by `dynaexq`, its 4 spare blocks of each size included; `never-stall` gets the same (it keeps the
low version of a high expert, so it holds fewer high ones), the plan may fill them, the static sets need none to spare.

    tests/research/quality_dynaexq.py measure --calib DIR --jobs 16 tiny-moe=examples/models/tiny-moe small-moe=DIR
    tests/research/quality_dynaexq.py page"""]
    ratios, better, best_of_plan, planned = {}, [], [], 0
    for model in models:
        equal = data["equal"][model]
        parts.append(f"### {model}: high and low versions\n\n{equal_table(equal)}\n\n{uniform_table(equal)}")
        for pair, share in q.cells():
            cell, lo, _ = of_cell(equal, pair, share)
            assert not any(run["stall_ms"] for run in cell.values()), "a run waited"
            ratios.setdefault(pair, []).append(
                gain_ratio(lo, cell["dynaexq"]["nll"], cell["oracle"]["nll"]))
            if "plan" not in cell:
                continue
            planned += 1
            diff = experiment.mean_of([a - b for a, b in zip(cell["plan"]["nll"], cell["dynaexq"]["nll"])])
            (better if diff.mean > 2 * diff.error else
             best_of_plan if diff.mean < -2 * diff.error else []).append((model, pair, share))
    rows = [[pair_name(pair), f"{min(r.mean for r in rs):.1f}", f"{lib.mean([r.mean for r in rs]):.1f}",
             f"{max(r.error for r in rs):.1f}", f"{sum(r.mean >= 95 for r in rs)} of {len(rs)}"]
            for pair, rs in ratios.items()]
    parts.append("### What dynaexq reaches of the oracle's gain\n\nPercent, over both models and all n_hi; the goal is 95.\n\n" +
                 experiment.table(["hi, lo", "least", "mean", "largest error", "at least 95"], rows))
    against = (f" Against the plan of the same bytes `dynaexq` is better beyond two standard errors in {len(better)} of {planned} cells and\n"
               f"worse in {len(best_of_plan)}." if planned else "")
    parts.append(f"""No run of any method waited a single time.{against} The paper recovers 89 % of the gap from INT2 to INT4 on Qwen3-80B, 31 % of that from INT4 to FP16 on Qwen3-30B and 39 % on
Phi-3.5-MoE, in average benchmark accuracy; here it is perplexity of small models.""")
    rows = []
    for model, pair, share in q.LONG_CELLS:
        runs = data["long"].get(f"{model} {pair[0]} {pair[1]} {share}")
        if runs:
            ratio = gain_ratio(runs["lo"], runs["dynaexq"], runs["oracle"])
            rows.append([f"{model}, {pair_name(pair)}, {100 * share:g} %"] + [
                f"{x.mean:.1f} ± {x.error:.1f}" for x in
                (recovered(runs["lo"], runs["hi"], runs["oracle"]),
                 recovered(runs["lo"], runs["hi"], runs["dynaexq"]), ratio)])
    if rows:
        parts.append(f"Cells below 95 %, over {q.LONG_WINDOWS - q.WARM} windows a domain instead of {q.WINDOWS - q.WARM}:\n\n" +
                     experiment.table(["cell", "oracle", "dynaexq", "dynaexq, % of oracle's gain"], rows))
    return "\n\n".join(parts)


def hysteresis_section(data):
    pair = q.PAIRS[1]
    rows = []
    factors = {}
    for model, runs in data["hysteresis"].items():
        for trace, interval in q.TRACES.items():
            base = runs[f"{trace}, without"]
            steps = len(q.DOMAINS) * q.LONG_WINDOWS * q.WINDOW
            intervals = steps * data["step_ms"][model] / interval
            for name in q.HYSTERESIS:
                run = runs[f"{trace}, {name}"]
                loss = experiment.loss_percent(base["nll"], run["nll"])
                factors[model, trace, name] = base["moves"] / run["moves"], loss
                rows.append([f"{model}, {trace} ({interval} ms)" if name == "with" else "", name,
                             f"{run['moves'] / intervals:.2f}", f"{base['moves'] / run['moves']:.1f}",
                             f"{perplexity(run['nll']):.3f}",
                             "" if name == "without" else experiment.signed(loss)])
    noisy = [factors[m, "noisy", "with"] for m in data["hysteresis"]]
    return f"""## Hysteresis

A newcomer enters only if it is hotter than the weakest member by a margin: a share of the layer's mean (`margin`) and so many standard deviations of chance
(`noise`), which the counts themselves tell, as those of independent selections scatter like Poisson's. A second mean that remembers `memory` times longer steadies
both sides of the comparison as long as chance explains its difference from the first; where it does not, the rate has changed and the recent mean stands alone.
`slack` asks for ranks inside the target set instead, and is off by default.

Transitions an interval (promotions and demotions, all layers and domains), {pair_name(pair)}, n_hi 25 %, with the defaults, without any of it
(`margin=0,noise=0,memory=1`) and without the second mean, over {(q.LONG_WINDOWS - q.WARM) * q.WINDOW * len(q.DOMAINS):,} tokens; perplexity over that without, percent. Noisy: intervals of 20 ms, five to seven tokens, 20 to 28 selections for
32 experts.

{experiment.table(["trace", "hysteresis", "transitions an interval", "times fewer", "perplexity", "over without, %"], rows)}

On the noisy trace {" and ".join(f"{f:.1f}" for f, _ in noisy)} times fewer (goal: 5), at {" and ".join(experiment.signed(x) + " %" for _, x in noisy)} perplexity."""


def shift_panels(shift):
    per = q.SHIFT_SEGMENT // q.SHIFT_WINDOW

    def by_position(nll):  # over all changes: the first segment is no shift
        return [[nll[s * per + i] for s in range(1, q.SHIFTS + 1)] for i in range(per)]

    high = by_position(shift["static high"])
    lines = []
    for i, name in enumerate(SHIFT_METHODS[:-1]):
        losses = [experiment.loss_percent(h, m) for h, m in zip(high, by_position(shift[name]))]
        lines.append(plot.Line(name, [((n + 0.5) * q.SHIFT_WINDOW, x.mean) for n, x in enumerate(losses)],
                               errors=[x.error for x in losses], color=i))
    points = shift["overlap"]["points"]
    recovery = plot.Panel(f"high set after a shift, mean and spread of {q.SHIFTS}", "tokens since the shift",
                          "overlap with steady state, %",
                          [plot.Line("overlap", [(x, 100 * y) for x, y, _ in points],
                                     errors=[100 * s for _, _, s in points], color=3)], y_range=(0, 100))
    quality = plot.Panel(f"perplexity after a shift, mean of {q.SHIFTS}", "tokens since the shift",
                         "over static high, %", lines)

    def trail(name):
        return [((i + 0.5) * q.SHIFT_SEGMENT,
                 100 * (math.exp(lib.mean(shift[name][i * per:(i + 1) * per]) -
                                 lib.mean(shift["static high"][i * per:(i + 1) * per])) - 1))
                for i in range(q.SHIFTS + 1)]

    along = plot.Panel("perplexity along the stream", "tokens", "over static high, %", [
        plot.Line(name, trail(name), color=c) for c, name in
        ((1, "static mixed, first domain"), (2, "static mixed, offline"), (3, "dynaexq"))])
    return [recovery, quality, along]


def shift_section(data):
    parts = [f"""## Shift

{pair_name(q.PAIRS[1])}, n_hi 25 %: {q.SHIFTS} changes {" -> ".join(q.DOMAINS)} -> {q.DOMAINS[0]}, every {q.SHIFT_SEGMENT} tokens. Steady state of a domain: the experts that are high
most of the time in the second half of its segments. Offline: by the calibration's frequencies."""]
    forgotten = math.log(0.05) / math.log(BETA)
    for model, shift in data["shift"].items():
        name = f"dynaexq-shift-{model}"
        plot.save(report.image(name), shift_panels(shift), columns=2, panel_width=380)
        points = shift["overlap"]["points"]
        assert shift["overlap"]["stalls"] == 0
        late = [y for x, y, _ in points if x >= q.SHIFT_SEGMENT // 2]
        spread = lib.mean([s for x, _, s in points if x >= q.SHIFT_SEGMENT // 2])
        settled = lib.mean(late)
        tokens = next(x for x, y, _ in points if y >= 0.95 * settled)
        per_interval = INTERVAL_MS / data["step_ms"][model]
        parts.append(f"""### {model}: after a change

{plot.picture(f"images/{name}", f"{model}: overlap of the high set with its steady state and perplexity after a shift")}

The overlap falls to {100 * min(y for _, y, _ in points):.0f} % and is back at 95 % of its settled {100 * settled:.0f} % (spread {100 * spread:.0f}) after {tokens} tokens, {tokens / per_interval:.1f} intervals; with
the default beta of {BETA} the past's weight falls to a twentieth in {forgotten:.0f}. Perplexity over the whole stream: """ +
                     ", ".join(f"{n} {perplexity(shift[n]):.3f}" for n in SHIFT_METHODS) + ".")
    return "\n\n".join(parts)


def demotion_section(data):
    hi, lo = q.PAIRS[1]
    panels, texts = [], []
    for model, runs in data["demotion"].items():
        uniform = data["equal"][model]["uniform"]
        lines = []
        for i, order in enumerate(("coldest first", "hottest first")):
            losses = [(0, experiment.Mean(0, 0, 1))]
            losses += [(low, experiment.loss_percent(uniform[hi]["nll"], runs[f"{order} {low}"]))
                       for low in q.DEMOTED]
            losses.append((data["experts"][model],
                           experiment.loss_percent(uniform[hi]["nll"], uniform[lo]["nll"])))
            lines.append(plot.Line(order, [(x, m.mean) for x, m in losses],
                                   errors=[m.error for _, m in losses], color=i))
        panels.append(plot.Panel(model, "experts of each layer in the low version",
                                 "perplexity over static high, %", lines))
        half = data["experts"][model] // 2
        cold, hot = (dict(line.points)[half] for line in lines)
        texts.append(f"{cold:.1f} % against {hot:.1f} % ({model})")
    plot.save(report.image("dynaexq-demotion"), panels, columns=2, panel_width=380)
    return f"""## Demoting experts, coldest or hottest first

Static sets by the selections of the stream itself (paper Fig. 3), {pair_name(q.PAIRS[1])}, all domains.

{plot.picture("images/dynaexq-demotion", "perplexity by number of demoted experts, coldest first and hottest first")}

With half of the experts low, coldest first against hottest first: {", ".join(texts)}."""


def write(data):
    # tiny-moe, which ships, before small-moe
    data = {what: dict(sorted(models.items(), reverse=True)) if isinstance(models, dict) else models
            for what, models in data.items()}
    sections = [section(data) for section, what in ((hysteresis_section, "hysteresis"),
                                                    (shift_section, "shift"),
                                                    (demotion_section, "demotion")) if data[what]]
    report.write("dynaexq", "\n\n".join([quality_section(data), *sections]))
