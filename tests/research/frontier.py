#!/usr/bin/env python3
"""Perplexity, time and bytes of every strategy: docs/results/frontier.md, which states the rule.

    frontier.py exact --models DIR --bin build/release/bin      packs, versions' perplexities, exact strategies
    frontier.py chosen --models DIR --bin build/release/bin     `auto` that chooses the version, over a checkpoint
    frontier.py lossy --models DIR --bin build/release/bin      those whose output depends on what is resident

DIR holds tiny-moe, small-moe, eval and calib. Held-out texts are decoded a token a step on the virtual clock:
the same figures on any machine. An exact strategy's perplexity is its version's, and its time comes from
replaying that version's routing; a lossy one runs the model. Results are kept in docs/results/data/frontier.json
and not repeated.
"""
import argparse
import array
import itertools
import json
import pathlib
import struct
import subprocess

import envelope
import quality_lib as lib
import report

W8, W4, W3, W2 = "w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym"
UNIFORM = ("bf16", W8, W4, W3, W2)
PLANS = {f"plan-{share}": share for share in (15, 25, 40)}  # percent of the experts' bytes in bf16
PLANNED = (W8, W4, "w4a16_g128_asym", W3, W2, "w2a16_g-1_asym")
VERSIONS = (*UNIFORM, *PLANS)
MODELS = ("tiny-moe", "small-moe")
BUDGETS = (10, 15, 25, 40, 60, 100)
LINKS = ("0.1/s", "0.5/s")
LOSSY_ORDER = (25, 40, 15, 60, 10)  # budgets, what says most first
TOKENS, WINDOW, WARM = 1024, 128, 2  # warm: windows that are not counted
PLAN_TOKENS = 6144
# `auto` that chooses the version, by a calibration of the calibration texts' beginnings.
CHOSEN = "auto:loss=0.005,calibrated"
MEASURED = (W8, W4, "w4a16_g128_asym", W3, W2)
TUNING_FIRST, TUNING_TOKENS = 32768, 1024  # of each calibration text, behind what plans are made of
STORED = report.DATA / "frontier.json"

EXACT = ("resident", "on-demand", "on-demand+importance.residency", "activation-path",
         "fate:percentile=75,eviction=arc", "fate", "auto")
# Strategy, and the version or pair (high, low) it runs over; what says most comes first.
LOSSY = (("auto:loss=0.005", "bf16"), ("importance", W8), ("dynaexq", (W8, W2)), ("never-stall", (W8, W2)),
         ("graded:loss=0.05", (W8, W2)), ("dynaexq", (W4, W2)), ("never-stall", (W4, W2)), ("importance", W4),
         ("dynaexq", ("bf16", W4)), ("never-stall", ("bf16", W4)), ("importance", "bf16"), ("auto:loss=0.005", W8),
         ("graded:loss=0.05", ("bf16", W2)), ("graded:loss=0.05", (W4, W2)),
         ("importance:alpha=0.3,max_mass=0.005", "bf16"), ("importance:alpha=0.3,max_mass=0.005", W8))


def bf16_bytes(model):
    return envelope.RECORD[model] * envelope.EXPERTS[model]


def spec_of(strategy, version):
    """`strategy` over a version, or a pair (high, low)."""
    keys = f"scheme={version}" if isinstance(version, str) else f"hi={version[0]},lo={version[1]}"
    first, plus, seam = strategy.partition("+")
    return f"{first}{',' if ':' in first else ':'}{keys}{plus}{seam}"


def high_of(version):
    return version if isinstance(version, str) else version[0]


class Bench:
    def __init__(self, args):
        self.args = args
        args.work.mkdir(parents=True, exist_ok=True)
        parts = ("fixed", "bytes", "nll", "tuning", "chosen", "cells")
        self.data = {"commit": args.commit} | {part: {} for part in parts} | lib.load(STORED)

    def call(self, tool, *words, refusable=False):
        """What the tool prints as JSON; None where it refuses its arguments, as a budget that does not hold."""
        done = subprocess.run([str(w) for w in (self.args.bin / f"moert-{tool}", *words, "--quiet")],
                              capture_output=True, text=True)
        if refusable and done.returncode == 2:
            return None
        if done.returncode:
            raise SystemExit(f"{tool} {' '.join(map(str, words))}\n{done.stderr}")
        return json.loads(done.stdout) if done.stdout else None

    # Packs: one with the uniform versions, one a plan.

    def make(self, name, tool, *words):
        path = self.args.work / name
        if not path.exists():
            self.call(tool, *words, "--out", path)
        return path

    def measured(self, model):
        """The calibration that says what versions lose."""
        return self.make(f"{model}.measured", "pack", "calibrate", "--model", self.args.models / model, "--method", "hqq",
                         "--schemes", ",".join(MEASURED), "--tokens", lib.calibration_files(self.args.models / "calib"),
                         "--threads", 1)

    def chosen_spec(self, model):
        return f"{CHOSEN.split(',')[0]},calibration={self.measured(model)}"

    def pack(self, model, version="bf16"):
        if version.startswith("mixed-"):
            return next(self.cache(model).glob(f"*-{version}-*"))
        common = ["--model", self.args.models / model, "--method", "hqq"]
        if version in UNIFORM:
            return self.make(f"{model}.uniform", "pack", "quantize", *common, "--schemes", ",".join(UNIFORM), "--threads", 1)
        calibration = self.make(f"{model}.calibration", "pack", "calibrate", *common, "--schemes", ",".join(PLANNED),
                                "--tokens", lib.calibration_files(self.args.models / "calib"), "--calibration-tokens",
                                PLAN_TOKENS, "--probe-tokens", 0)
        plan = self.make(f"{model}.{version}.plan", "pack", "allocate", "--calibration", calibration, "--budget",
                         bf16_bytes(model) * PLANS[version] // 100, "--name", version)
        return self.make(f"{model}.{version}.pack", "pack", "quantize", *common, "--plan", plan, "--threads", 1)

    def cache(self, model):
        """Where moert-run keeps the packs that `auto` has chosen."""
        return self.args.work / f"{model}.cache"

    # Runs of the model, and replays.

    def run(self, model, version, tokens, limit, *words, **refusable):
        """`version`: of the packs; None: the checkpoint, and `auto` makes what it chooses."""
        experts = ["--experts", self.pack(model, version)] if version else ["--pack", "--cache", self.cache(model)]
        return self.call("run", "ppl", "--model", self.args.models / model, *experts, "--tokens", tokens, "--limit", limit,
                         "--window", WINDOW, "--clock", "virtual", "--backend", "cpu", "--threads", 1, "--json", "-",
                         *words, **refusable)

    def decode(self, model, version, domain, trace, *words, **refusable):
        return self.run(model, version, self.args.models / "eval" / f"{domain}.tokens.u16", TOKENS, "--step-tokens", 1,
                        "--batch", 1, "--trace", trace, "--force", *words, **refusable)

    def trace(self, model, version, domain):
        return self.args.work / f"{model}-{version}-{domain}.trace"

    def record(self, model, version, domain):
        """The routing of a version and its perplexity; all versions of the pack can be replayed from it."""
        trace, name = self.trace(model, version, domain), f"{model} {domain} {version}"
        if not trace.exists() or name not in self.data["nll"]:
            done = self.decode(model, version, domain, trace.with_suffix(".part"), "--strategy", f"on-demand:scheme={version}",
                               "--budget", "100%")
            trace.with_suffix(".part").rename(trace)
            self.keep("nll", name, lib.rounded(done["window_nll"][WARM:]))
        return trace

    def tune(self, model, version):
        """Perplexity on the calibration texts, by which the version of `auto` is chosen."""
        name = f"{model} {version}"
        if name in self.data["tuning"]:
            return
        nll = []
        for domain in lib.DOMAINS:
            words = array.array("H", (self.args.models / "calib" / f"{lib.CALIBRATION[domain]}.tokens.u16").read_bytes())
            part = self.args.work / f"{domain}-tuning.u16"
            part.write_bytes(words[TUNING_FIRST:TUNING_FIRST + TUNING_TOKENS].tobytes())
            # A window a step gives the same bits as a token a step, sooner.
            done = self.run(model, version, part, TUNING_TOKENS, "--strategy", f"resident:scheme={version}", "--budget", "100%")
            nll += lib.rounded(done["window_nll"])
        self.keep("tuning", name, nll)

    def fixed(self, model):
        """What an engine holds beside the experts, bytes; the most of all strategies of one version."""
        if model not in self.data["fixed"]:
            done = self.call("sim", "--trace", self.record(model, "bf16", lib.DOMAINS[0]), "--strategy",
                             "importance:scheme=bf16", "--budget", "100%", "--steps", 1, "--json", "-")
            self.keep("fixed", model, done["budget_bytes"] - bf16_bytes(model))
        return self.data["fixed"][model]

    def weigh(self, model, version):
        """Bytes of the blocks that hold all experts in `version`."""
        if f"{model} {version}" not in self.data["bytes"]:
            done = self.call("sim", "--trace", self.trace(model, version, lib.DOMAINS[0]), "--strategy",
                             f"resident:scheme={version}", "--budget", "100%", "--steps", 1, "--json", "-")
            self.keep("bytes", f"{model} {version}", done["pool_bytes"])

    def budget(self, model, percent):
        return ["--budget", bf16_bytes(model) * percent // 100 + self.fixed(model)]

    def replay(self, model, domain, percent, link, version, strategy):
        """[ms a step], or None where the budget does not hold it."""
        done = self.call("sim", "--trace", self.trace(model, version, domain), "--strategy", report.today(spec_of(strategy, version)),
                         *self.budget(model, percent), *envelope.link_flags(model, link), "--warm", WARM * WINDOW,
                         "--json", "-", refusable=True)
        return done and [round(done["tpot_ms"]["mean"], 4)]

    def lossy(self, model, domain, percent, link, version, strategy):
        """[ms a step, windows' nll, shares of the routing mass answered low and substituted], or None."""
        trace = self.args.work / "lossy.trace"
        done = self.decode(model, high_of(version), domain, trace, "--strategy", report.today(spec_of(strategy, version)),
                           *self.budget(model, percent), *envelope.link_flags(model, link), refusable=True)
        if not done:
            return None
        routing = done["routing"]
        return [round(step_ms(trace, WARM * WINDOW), 4), lib.rounded(done["window_nll"][WARM:]),
                round(routing["mass_low"], 5), round(routing["mass_substituted"], 5)]

    def choose(self, model, percent, link):
        """The version that `auto` takes for a budget and a link, made as a user of moert-run makes it."""
        name = f"{model} {percent} {link}"
        if name not in self.data["chosen"]:
            tokens = self.args.models / "calib" / f"{lib.CALIBRATION[lib.DOMAINS[0]]}.tokens.u16"
            done = self.run(model, None, tokens, WINDOW, "--step-tokens", 1, "--batch", 1, "--strategy", self.chosen_spec(model),
                            *self.budget(model, percent), *envelope.link_flags(model, link))
            self.keep("chosen", name, done["strategy"])
        strategy, _, version = self.data["chosen"][name].partition(":scheme=")
        return strategy, version or "bf16"

    def keep(self, part, name, value):
        self.data[part][name] = value
        lib.save(STORED, self.data)

    def cell(self, measure, cell, version, strategy):
        name = name_of(cell, spec_of(strategy, version))
        if name not in self.data["cells"]:
            self.data["cells"][name] = measure(*cell, version, strategy)

    def measure(self, model, version):
        """What cells of this version are replayed from: its loss, the routing recorded, its bytes."""
        self.tune(model, version)
        for domain in lib.DOMAINS:
            self.record(model, version, domain)
        self.weigh(model, version)
        print(model, version, flush=True)

    def whole(self, cell, version):
        """Whether the budget holds all experts in `version`."""
        return self.data["cells"][name_of(cell, spec_of("resident", version))] is not None


def name_of(cell, spec):
    return " ".join(map(str, (*cell, spec)))


def cells(models=MODELS):
    return list(itertools.product(models, lib.DOMAINS, BUDGETS, LINKS))


def step_ms(trace, warm):
    """Mean over the steps of a trace behind the first `warm` (docs/reference/trace-format.md)."""
    data = trace.read_bytes()
    at, steps = 24 + struct.unpack_from("<I", data, 12)[0], {}
    while at < len(data):
        size, = struct.unpack_from("<Q", data, at)
        step, begin, _, end = struct.unpack_from("<4q", data, at + 16)
        steps[step] = (steps.get(step, (begin, 0))[0], end)
        at += size
    return lib.mean([(end - begin) / 1e6 for begin, end in list(steps.values())[warm:]])


def exact(bench):
    for model in bench.args.only:
        for version in bench.args.versions:
            bench.measure(model, version)
        for cell in cells([model]):
            for version in bench.args.versions:
                bench.cell(bench.replay, cell, version, "resident")
                for strategy in EXACT[1:]:
                    if strategy == "auto" or not bench.whole(cell, version):
                        bench.cell(bench.replay, cell, version, strategy)
            lib.save(STORED, bench.data)
            print(*cell, flush=True)


def chosen(bench):
    """In each cell what `auto` chooses, as its own cell: the time of the chosen strategy in the chosen version."""
    for model in bench.args.only:
        choices = {(percent, link): bench.choose(model, percent, link) for percent in BUDGETS for link in LINKS}
        for version in dict.fromkeys(version for _, version in choices.values()):
            bench.measure(model, version)
        for cell in cells([model]):
            strategy, version = choices[cell[2:]]
            name = name_of(cell, spec_of(CHOSEN, version))
            bench.data["cells"][name] = bench.replay(*cell, version, strategy)
            for rival in ("resident", *EXACT[1:-1]):  # rivals may have the version, too
                if rival == "resident" or not bench.whole(cell, version):
                    bench.cell(bench.replay, cell, version, rival)
            lib.save(STORED, bench.data)
        print(model, flush=True)


def lossy(bench):
    for model, link, budget, (strategy, version) in itertools.product(bench.args.only, reversed(LINKS), LOSSY_ORDER, LOSSY):
        for cell in itertools.product([model], lib.DOMAINS, [budget], [link]):
            if not bench.whole(cell, high_of(version)):
                bench.cell(bench.lossy, cell, version, strategy)
                lib.save(STORED, bench.data)
        print(model, link, budget, strategy, version, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["exact", "chosen", "lossy"])
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, default=report.ROOT / "build" / "release" / "bin")
    parser.add_argument("--work", type=pathlib.Path, default=report.ROOT / "build" / "frontier")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=VERSIONS, help="of exact strategies")
    parser.add_argument("--commit", default="", help="of the tools, to be stored")
    args = parser.parse_args()
    bench = Bench(args)
    {"exact": exact, "chosen": chosen, "lossy": lossy}[args.part](bench)


if __name__ == "__main__":
    main()
