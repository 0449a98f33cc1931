#!/usr/bin/env python3
"""Plans of moert-pack allocate against uniform schemes of the same stored bits.

    tests/research/quality_allocator.py measure --small DIR --calib DIR [--jobs N] [--work DIR] [--only TEXT]
    tests/research/quality_allocator.py page

measure fills docs/results/data/quality-plans.json (what is there already is not measured again), a cell a
process of one thread, --jobs of them at a time; page writes build/report/plans.md
from it, and a chart.
"""
import argparse
import concurrent.futures
import hashlib
import json
import math
import pathlib
import random
import shutil

import plot
import quality_lib as lib
import report

JSON = report.DATA / "quality-plans.json"
TOKENS = 32768  # that calibrate, plans and GPTQ alike
WINDOWS = 63    # of every domain: all
RANDOM_PLANS = 30
RANDOM_WINDOWS = 32
RANDOM_TOKENS = 8192  # that calibrate where weights are rounded to nearest
ACTIVATION_SCHEMES = "w4a4,w4a4_g128,w4a8_g128,w8a8"
UNIFORM = {"2.25": "w2a16_g128_asym", "2.5": "w2a16_g64_asym", "3.25": "w3a16_g128_asym",
           "4.25": "w4a16_g128_asym"}
FEW = ["2.25", "2.5"]  # at which choices are compared
# tiny-moe's down projections have 64 columns, so their groups are of 64: uniform schemes take more,
# and the smallest plan 2.33 bits.
TINY = {"2.5": "w2a16_g64_asym", "3.33": "w3a16_g128_asym", "4.33": "w4a16_g128_asym"}


def uniform(scheme, method="gptq", hadamard=False, model="small", domains=None):
    return {"model": model, "scheme": scheme, "method": method, "hadamard": hadamard,
            "domains": domains}


def plan(bits, flags=(), method="gptq", hadamard=False, model="small", domains=None, schemes=None):
    return {"model": model, "bits": bits, "flags": list(flags), "method": method,
            "hadamard": hadamard, "domains": domains, "schemes": schemes}


def cells():
    """name -> what to make and score, what matters most first."""
    out = {}
    for i in range(RANDOM_PLANS):
        out[f"random {i}"] = plan("3", ["--random", str(i + 1)], "rtn", model="tiny")
    for bits, scheme in UNIFORM.items():
        out[f"{bits} plan gptq"] = plan(bits)
        out[f"{bits} uniform gptq"] = uniform(scheme)
        if bits in FEW:
            out[f"{bits} plan gptq, relative"] = plan(bits, ["--loss", "relative"])
    for bits, scheme in TINY.items():
        out[f"tiny {bits} plan gptq"] = plan(bits, model="tiny")
        out[f"tiny {bits} uniform gptq"] = uniform(scheme, model="tiny")
        if bits in FEW:
            out[f"tiny {bits} plan gptq, relative"] = plan(bits, ["--loss", "relative"],
                                                           model="tiny")
    for bits, scheme in UNIFORM.items():
        out[f"{bits} uniform gptq hadamard"] = uniform(scheme, hadamard=True)
        out[f"{bits} plan gptq hadamard"] = plan(bits, hadamard=True)
        if bits in FEW:
            out[f"{bits} plan gptq hadamard, relative"] = plan(bits, ["--loss", "relative"],
                                                               hadamard=True)
    for bits in UNIFORM:
        out[f"{bits} plan gptq, Delta"] = plan(bits, ["--loss", "delta"])
    for scheme in ACTIVATION_SCHEMES.split(","):
        out[f"act {scheme} rtn hadamard"] = uniform(scheme, "rtn", True)
    for name, schemes in [("a4", "w4a4,w4a4_g128,w8a8"), ("a8", "w4a8_g128,w8a8")]:
        out[f"act plan {name} rtn hadamard"] = plan("5", (), "rtn", True, schemes=schemes)
    out["act plan a4 rtn hadamard, by expert"] = plan("5", ["--granularity", "expert"], "rtn", True,
                                                      schemes="w4a4,w4a4_g128,w8a8")
    for bits, scheme in UNIFORM.items():
        out[f"{bits} uniform hqq"] = uniform(scheme, "hqq")
        out[f"{bits} plan hqq"] = plan(bits, method="hqq")
        if bits in FEW:
            out[f"{bits} plan hqq, relative"] = plan(bits, ["--loss", "relative"], "hqq")
    for d in lib.DOMAINS:
        out[f"2.5 uniform gptq, on {d}"] = uniform(UNIFORM["2.5"], domains=[d])
        out[f"2.5 plan gptq, on {d}"] = plan("2.5", domains=[d])
    for bits in FEW:
        out[f"{bits} plan gptq, by expert"] = plan(bits, ["--granularity", "expert"])
        out[f"{bits} plan gptq, by layer"] = plan(bits, ["--granularity", "layer"])
        out[f"{bits} plan gptq, untied"] = plan(bits, ["--untied"])
        out[f"{bits} plan gptq, r = 0.75"] = plan(bits, ["--r", "0.75"])
        out[f"{bits} plan gptq, a budget a layer"] = plan(bits, ["--per-layer"])
    for bits, scheme in TINY.items():
        out[f"tiny {bits} uniform hqq"] = uniform(scheme, "hqq", model="tiny")
        out[f"tiny {bits} plan hqq"] = plan(bits, method="hqq", model="tiny")
    for bits in ["3.25", "4.25"]:
        out[f"{bits} plan gptq, by expert"] = plan(bits, ["--granularity", "expert"])
        out[f"{bits} plan gptq, r = 0.75"] = plan(bits, ["--r", "0.75"])
    for method in ["gptq", "hqq"]:
        for bits, scheme in TINY.items():
            out[f"tiny {bits} uniform {method} hadamard"] = uniform(scheme, method, True, "tiny")
            out[f"tiny {bits} plan {method} hadamard"] = plan(bits, (), method, True, "tiny")
    for bits, scheme in UNIFORM.items():
        out[f"{bits} uniform hqq hadamard"] = uniform(scheme, "hqq", True)
        out[f"{bits} plan hqq hadamard"] = plan(bits, (), "hqq", True)
    out["tiny 2.5 plan gptq, by expert"] = plan("2.5", ["--granularity", "expert"], model="tiny")
    out["tiny 2.5 plan gptq, r = 0.75"] = plan("2.5", ["--r", "0.75"], model="tiny")
    for i in range(RANDOM_PLANS):
        out[f"small random {i}"] = plan("2.75", ["--random", str(i + 1)])
    return out


class Matrix:
    def __init__(self, args):
        self.args = args
        self.work = pathlib.Path(args.work).resolve()
        self.models = {"small": args.small, "tiny": args.tiny}
        self.tools = lib.Tools(args.binaries, self.work)

    def tokens(self, cell):
        return ["--tokens", lib.calibration_files(self.args.calib, cell["domains"]),
                "--calibration-tokens", RANDOM_TOKENS if cell["method"] == "rtn" else TOKENS]

    def calibration(self, cell):
        """Command and file of the calibration that a plan needs; None for a uniform scheme."""
        if "scheme" in cell:
            return None
        wants = [cell["model"], cell["method"], cell["hadamard"], cell["domains"],
                 bool(cell["schemes"])]
        name = "calibration-" + hashlib.sha256(json.dumps(wants).encode()).hexdigest()[:12]
        command = ["calibrate", "--model", self.models[cell["model"]], *self.tokens(cell),
                   "--method", cell["method"], "--out", self.work / name, "--quiet"]
        command += ["--hadamard"] if cell["hadamard"] else []
        command += ["--schemes", ACTIVATION_SCHEMES] if cell["schemes"] else []
        return name, command

    def score(self, cell, windows, *extra):
        return {d: [round(v, 4) for v in self.tools.window_nll(
            self.models[cell["model"]], pathlib.Path(self.args.eval) / f"{d}.tokens.u16",
            "--strategy", "resident", "--threads", 1, "--limit", 512 * windows,
            *extra)] for d in lib.DOMAINS}

    def run(self, name, cell):
        at = self.work / hashlib.sha256(name.encode()).hexdigest()[:12]
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir(parents=True)
        entry = {}
        if "scheme" in cell:
            what = ["--schemes", cell["scheme"]]
            calibrated = self.work / self.calibration(plan(
                "16", method=cell["method"], hadamard=cell["hadamard"], model=cell["model"],
                domains=cell["domains"]))[0]
            if calibrated.exists() and not name.startswith("act "):  # what it predicts of this one
                self.tools.run("moert-pack", "allocate", "--calibration", calibrated, "--bits", 16,
                               "--schemes", cell["scheme"], "--out", at / "plan", "--quiet")
                entry["losses"] = json.loads((at / "plan").read_text())["summary"]["losses"]
        else:
            flags = ["--schemes", cell["schemes"]] if cell["schemes"] else []
            self.tools.run("moert-pack", "allocate", "--calibration",
                           self.work / self.calibration(cell)[0], "--bits", cell["bits"], "--name",
                           "plan", "--out", at / "plan", "--quiet", *flags, *cell["flags"])
            summary = json.loads((at / "plan").read_text())["summary"]
            entry = {k: summary[k] for k in ["gap", "losses", "seconds", "shares", "measure"]}
            what = ["--plan", at / "plan"]
        command = ["quantize", "--model", self.models[cell["model"]], "--out", at / "pack", *what,
                   "--method", cell["method"], "--threads", 1, "--quiet"]
        command += ["--hadamard"] if cell["hadamard"] else []
        command += self.tokens(cell) if cell["method"] == "gptq" else []
        self.tools.run("moert-pack", *command)
        entry["stored_bits"] = round(
            self.tools.info(at / "pack")["versions"][0]["stored_bits"], 5)
        few = "random " in name
        entry["nll"] = self.score(cell, RANDOM_WINDOWS if few else WINDOWS, "--experts",
                                  at / "pack")
        if few:
            entry["nll"] = {d: round(lib.mean(v), 5) for d, v in entry["nll"].items()}
        shutil.rmtree(at)
        return entry

    def measure(self):
        data = lib.load(self.args.json)
        todo = {n: c for n, c in cells().items() if n not in data and self.args.only in n}
        for name, model in [("bf16", "small"), ("tiny bf16", "tiny")]:
            if name in data or not self.models[model] or self.args.only not in name:
                continue
            nll = {d: [round(v, 4) for v in self.tools.window_nll(
                self.models[model], pathlib.Path(self.args.eval) / f"{d}.tokens.u16",
                "--strategy", "resident", "--limit", 512 * WINDOWS)] for d in lib.DOMAINS}
            data[name] = {"stored_bits": 16, "nll": nll}
        waiting = {}  # calibration -> cells that need it and do not have it
        ready = []
        for name, cell in todo.items():
            wanted = self.calibration(cell)
            if wanted and not (self.work / wanted[0]).exists():
                waiting.setdefault(wanted[0], (wanted[1], []))[1].append(name)
            else:
                ready.append(name)
        for cells_of in waiting.values():  # these predict their uniform schemes too
            first = todo[cells_of[1][0]]
            same = [n for n in ready if "scheme" in todo[n] and not n.startswith("act ") and
                    all(todo[n][k] == first[k] for k in ["model", "method", "hadamard", "domains"])]
            cells_of[1].extend(same)
            ready = [n for n in ready if n not in same]

        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            calibrating = {pool.submit(self.tools.run, "moert-pack", *command, "--threads", 1): of
                           for command, of in waiting.values()}
            running = {pool.submit(self.run, n, todo[n]): n for n in ready}
            while calibrating or running:
                for done in concurrent.futures.wait(
                        [*calibrating, *running],
                        return_when=concurrent.futures.FIRST_COMPLETED).done:
                    names = calibrating.pop(done, None)
                    name = running.pop(done, None)
                    try:
                        result = done.result()
                    except SystemExit as failed:  # the others go on
                        print(f"failed: {name or names}: {failed}", flush=True)
                        continue
                    for n in names or []:
                        running[pool.submit(self.run, n, todo[n])] = n
                    if not name:
                        continue
                    data[name] = result
                    lib.save(self.args.json, data)
                    print(name, {d: round(lib.perplexity(v) if isinstance(v, list) else
                                          math.exp(v), 3) for d, v in result["nll"].items()},
                          flush=True)


def gain_text(better, worse):
    m, half = lib.difference(better, worse)
    return f"{m:+.4f} ± {half:.4f} ({100 * (math.exp(m) - 1):+.1f} %)"


def row(name, entry, base, against=None):
    """A line of a table; `against`: what its gain is measured from."""
    over, half = lib.difference(lib.pooled(entry["nll"]), lib.pooled(base))
    gain = gain_text(lib.pooled(entry["nll"]), lib.pooled(against["nll"])) if against else ""
    return (f"| {name} | {entry['stored_bits']:.3f} | " +
            " | ".join(f"{lib.perplexity(entry['nll'][d]):.3f}" for d in lib.DOMAINS) +
            f" | {over:+.4f} ± {half:.4f} | {gain} |")


HEAD = ["| | stored bits | " + " | ".join(lib.DOMAINS) + " | loss over bf16 | gain of the plan |",
        "|---|---|" + "---|" * (len(lib.DOMAINS) + 2)]


def against_uniform(data, widths, prefix=""):
    base = data[prefix + "bf16"]["nll"]
    lines = HEAD + ["| bf16 | 16 | " + " | ".join(
        f"{lib.perplexity(base[d]):.3f}" for d in lib.DOMAINS) + " | 0 | |"]
    for bits in widths:
        for kind in ["gptq", "gptq hadamard", "hqq", "hqq hadamard"]:
            same = data.get(f"{prefix}{bits} uniform {kind}")
            if not same:
                continue
            lines.append(row(f"{bits} uniform {kind}", same, base))
            name = f"{bits} plan {kind}"
            if prefix + name in data:
                lines.append(row(name, data[prefix + name], base, same))
    return lines + [""]


CHOICES = [("Delta", "L: the paper's sum of Delta"), ("relative", "L: Delta over the norm of its "
           "layer's output"), ("by expert", "one scheme per expert"), ("by layer", "one scheme per layer"),
           ("untied", "gate and up may differ"), ("r = 0.75", "r = 0.75"),
           ("a budget a layer", "a budget per layer")]


def choices(data):
    """Each choice against the plan that allocate makes by itself, of the same bytes."""
    lines = ["| instead of the default | " + " | ".join(f"{b} bits" for b in UNIFORM) + " |",
             "|---|" + "---|" * len(UNIFORM)]
    for kind in ["gptq", "gptq hadamard", "hqq", "tiny gptq"]:
        prefix, quantizer = ("tiny ", kind[5:]) if kind.startswith("tiny ") else ("", kind)
        for flag, text in CHOICES:
            pairs = [(data.get(f"{prefix}{b} plan {quantizer}, {flag}"),
                      data.get(f"{prefix}{b} plan {quantizer}")) for b in UNIFORM]
            if not any(a and b for a, b in pairs):
                continue
            where = {"gptq": "", "tiny gptq": " (tiny-moe)"}.get(kind, f" ({kind})")
            lines.append(f"| {text}{where} | " + " | ".join(
                gain_text(lib.pooled(a["nll"]), lib.pooled(b["nll"])) if a and b else "-"
                for a, b in pairs) + " |")
    return lines + [""]


def domains(data):
    lines = ["| calibrated on | bits | " + " | ".join(
        f"{d}: plan over uniform" for d in lib.DOMAINS) + " | " +
        " | ".join(f"{d}: over the plan of all" for d in lib.DOMAINS) + " |",
        "|---|---|" + "---|" * (2 * len(lib.DOMAINS))]
    for bits in ["2.5"]:
        for on in lib.DOMAINS:
            own, same = data.get(f"{bits} plan gptq, on {on}"), data.get(
                f"{bits} uniform gptq, on {on}")
            every = data.get(f"{bits} plan gptq")
            if not own or not same or not every:
                continue
            cell = []
            for other in [same, every]:
                for d in lib.DOMAINS:
                    m, half = lib.difference(own["nll"][d], other["nll"][d])
                    text = f"{m:+.4f} ± {half:.4f}"
                    cell.append(f"**{text}**" if d == on else text)
            lines.append(f"| {on} | {bits} | " + " | ".join(cell) + " |")
    return lines + [""]


MEASURES = [("delta", 0, "sum of Delta (the paper)"), ("delta", 1, "sum of Delta squared"),
            ("relative", 0, "Delta over the norm of its layer's output"),
            ("relative", 1, "the same, squared"), ("end-to-end", 0, "end to end, not squared"),
            ("end-to-end", 1, "end to end, squared (nats)")]


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    out = [0.0] * len(values)
    for rank, i in enumerate(order):
        out[i] = rank
    return out


def pearson(a, b):
    x, y = [v - lib.mean(a) for v in a], [v - lib.mean(b) for v in b]
    return sum(p * q for p, q in zip(x, y)) / math.sqrt(sum(p * p for p in x) *
                                                        sum(q * q for q in y))


def fisher(r, n):
    """95 % interval of a correlation."""
    z, half = math.atanh(r), 1.96 / math.sqrt(n - 3)
    return math.tanh(z - half), math.tanh(z + half)


def measured_plans(data):
    """What predicts the order of the plans and the uniform scheme of equal bytes?"""
    base = lib.pooled(data["bf16"]["nll"])
    groups = {}
    for name, entry in data.items():
        bits = name.split()[0]
        if bits in UNIFORM and "losses" in entry and " gptq" in name and not any(
                word in name for word in ["hadamard", ", on "]):
            m, _ = lib.difference(lib.pooled(entry["nll"]), base)
            groups.setdefault(bits, []).append((entry["losses"], m))
    groups = {b: g for b, g in groups.items() if len(g) >= 5}
    if not groups:
        return []
    lines = ["Of the plans and uniform schemes of equal bytes above, all by GPTQ: correlation of the "
             "predicted with the measured loss, of ranks in parentheses.", "",
             "| what is summed | " + " | ".join(f"{len(g)} of {b} bits" for b, g in
                                                groups.items()) + " |",
             "|---|" + "---|" * len(groups)]
    for measure, power, text in MEASURES:
        cell = []
        for group in groups.values():
            predicted = [losses[measure][power] for losses, _ in group]
            measured = [m for _, m in group]
            cell.append(f"{pearson(predicted, measured):.2f} "
                        f"({pearson(ranks(predicted), ranks(measured)):.1f})")
        lines.append(f"| {text} | " + " | ".join(cell) + " |")
    return lines + [""]


def bootstrap(first, second, measured, rounds=4000):
    """95 % interval of the difference of two correlations with what was measured, over plans."""
    n, rng, found = len(measured), random.Random(1), []
    for _ in range(rounds):
        of = [rng.randrange(n) for _ in range(n)]
        a, b, y = ([v[i] for i in of] for v in [first, second, measured])
        found.append(pearson(a, y) - pearson(b, y))
    found.sort()
    return found[rounds // 40], found[-rounds // 40]


def predictions(data, sets):
    """sets: prefix of the cells -> what they are. Correlations of predictions with the loss."""
    found = {}
    for prefix, text in sets.items():
        plans = [data[f"{prefix}{i}"] for i in range(RANDOM_PLANS) if f"{prefix}{i}" in data]
        if len(plans) >= 5:
            found[text] = plans, [lib.mean([p["nll"][d] for d in lib.DOMAINS]) for p in plans]
    if not found:
        return []
    lines = ["| what is summed | " + " | ".join(f"{len(p)} plans of {t} | of ranks"
                                                for t, (p, _) in found.items()) + " |",
             "|---|" + "---|---|" * len(found)]
    for measure, power, text in MEASURES:
        cell = []
        for plans, measured in found.values():
            predicted = [p["losses"][measure][power] for p in plans]
            r = pearson(predicted, measured)
            low, high = fisher(r, len(plans))
            cell.append(f"{r:.3f} ({low:.2f} to {high:.2f}) | "
                        f"{pearson(ranks(predicted), ranks(measured)):.3f}")
        lines.append(f"| {text} | " + " | ".join(cell) + " |")
    panels = []
    for name, (plans, measured) in found.items():
        losses = {m: [p["losses"][m][i] for p in plans] for m, i, _ in
                  [MEASURES[0], MEASURES[2], MEASURES[5]]}
        against = []
        for measure in ["relative", "delta"]:
            low, high = bootstrap(losses["end-to-end"], losses[measure], measured)
            more = pearson(losses["end-to-end"], measured) - pearson(losses[measure], measured)
            against.append(f"{more:+.3f} ({low:+.3f} to {high:+.3f}) from that of `{measure}`")
        lines += ["", f"Over plans of {name}, the default's correlation (end to end, squared) differs "
                  f"by {' and '.join(against)}; intervals: bootstrap over plans."]
        for (measure, _, text) in [MEASURES[0], MEASURES[2], MEASURES[5]]:
            scale = 1 if measure == "end-to-end" else max(losses[measure])
            panels.append(plot.Panel(
                f"{name.split(',')[0]}: {text}",
                "predicted" + (", nats a token" if scale == 1 else ", of the largest"),
                "measured, nats a token",
                [Dots("", sorted((x / scale, y) for x, y in zip(losses[measure], measured)))]))
    plot.save(report.image("plans-predicted"), panels)
    return lines + ["", plot.picture("images/plans-predicted",
                                     "predicted against measured loss of random plans"), ""]


def Dots(name, points):
    """Points that no line joins: a break between each two."""
    spread = []
    for point in points:
        spread += [point, (point[0], None)]
    return plot.Line(name, spread)


def activations(data):
    base = data["bf16"]["nll"]
    lines = HEAD[:]
    lines[0] = lines[0].replace("gain of the plan", "gain over w4a4_g128")
    against = data.get("act w4a4_g128 rtn hadamard")
    for name in [n for n in cells() if n.startswith("act ")] + sorted(
            n for n in data if n.startswith("emulated ")):
        if name in data:
            lines.append(row(name.replace("act ", ""), data[name], base,
                             against if "plan" in name else None))
    return lines + [""]


def page():
    data = lib.load(JSON)
    lines = ["## Plans against uniform schemes", "",
             f"Plans and GPTQ calibrated on {TOKENS:,} tokens of training text, a third of each "
             f"domain; perplexity over the whole evaluation files ({WINDOWS} windows each). The loss "
             "is the mean over the windows of all domains, in nats a token, and a gain a difference "
             "of it between the same windows, with its 95 % interval (in perplexity: in "
             "parentheses). A plan is what `moert-pack allocate` makes by itself (end-to-end loss, "
             "r = 1, gate and up tied), from a calibration with the same quantizer.", "",
             "    tests/research/quality_allocator.py measure --small DIR --calib DIR --jobs N",
             "    tests/research/quality_allocator.py page", "", "### small-moe", ""]
    lines += against_uniform(data, UNIFORM)
    if "tiny bf16" in data and any(n.startswith("tiny 2.5") for n in data):
        lines += ["### tiny-moe", "",
                  "Its down projections have 64 columns, so that their groups are of 64, the uniform "
                  "schemes take 2.50, 3.33 and 4.33 bits, and no plan less than 2.33 (per channel).",
                  ""] + against_uniform(data, TINY, "tiny ")
    lines += ["### What the choices are worth", "",
              "small-moe by GPTQ unless it says so; loss over that of the default plan of the same "
              "bytes, in nats a token: above zero, the default is better.", ""] + choices(data)
    if any(", on " in n for n in data):
        lines += ["### Calibrated on one domain", "",
                  "Plan and GPTQ calibrated on one domain's training text alone; in bold, scored on "
                  "the same domain. Left: the plan's loss over the uniform scheme's with that "
                  "calibration. Right: over the plan's that was calibrated on all.",
                  ""] + domains(data)
    lines += ["### Does the summed loss predict?", ""] + measured_plans(data)
    found = predictions(data, {"random ": "tiny-moe, 3 bits, rounded to nearest",
                               "small random ": "small-moe, 2.75 bits, GPTQ"})
    if found:
        lines += ["Plans drawn at random (`allocate --random SEED`: layers, kinds of blocks and "
                  "blocks get their bits without a look at Delta), scored on "
                  f"{RANDOM_WINDOWS} windows of every domain.", ""] + found
    if any(n.startswith("act ") for n in data):
        lines += ["### Weights and activations", "",
                  "small-moe, rounded to nearest. `a4`: plans of 5 stored bits from w4a4, w4a4_g128 "
                  "and w8a8 (the paper's W5A5); `a8`: from w4a8_g128 and w8a8. Activations are "
                  "rounded at run time, by the CPU kernels of these schemes. `emulated`: weights per "
                  "channel and activations per token of as many bits, in fp32 arithmetic with other "
                  "random signs (tests/research/quality_uniform_bits.py, one H200): no hardware has 5 or 6.",
                  ""] + activations(data)
    report.write("plans", "\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("--small")
    parser.add_argument("--tiny", default=str(lib.ROOT / "examples" / "models" / "tiny-moe"))
    parser.add_argument("--calib")
    parser.add_argument("--eval", default=str(lib.ROOT / "tests" / "data" / "eval"))
    parser.add_argument("--binaries", default=str(lib.ROOT / "build" / "dev" / "bin"))
    parser.add_argument("--work", default="build/quality")
    parser.add_argument("--json", type=pathlib.Path, default=JSON)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    args = parser.parse_args()
    if args.what == "measure":
        if not args.calib or not args.small:
            parser.error("measure needs --small, a checkpoint, and --calib, a folder of tokens")
        Matrix(args).measure()
    if args.json == JSON:
        page()


if __name__ == "__main__":
    main()
