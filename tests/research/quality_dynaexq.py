#!/usr/bin/env python3
"""Quality of two precisions at equal stored bytes, chosen online or not.

    tests/research/quality_dynaexq.py measure --calib DIR [--jobs N] tiny-moe=examples/models/tiny-moe small-moe=DIR
    tests/research/quality_dynaexq.py page

measure fills docs/results/data/quality-dynaexq.json: teacher-forced decode on the virtual clock, one thread a run
and --jobs runs at a time, so a rerun gives the same figures on any machine that computes the same. Runs
are kept in --work and not repeated. page writes build/report/dynaexq.md from it.
"""
import argparse
import array
import json
import os
import struct
import subprocess
import sys
import tempfile

import experiment
import quality_lib as lib

JSON = lib.ROOT / "docs" / "results" / "data" / "quality-dynaexq.json"
DOMAINS = lib.DOMAINS
SCHEMES = ["bf16", "w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym"]
PAIRS = [("bf16", "w4a16_g128"), ("w8a16_g128", "w2a16_g64_asym"), ("w4a16_g128", "w2a16_g64_asym")]
SHARES = [0.125, 0.25, 0.5]
# A plan chooses from these: schemes of the pairs, and those between and below.
PLAN_SCHEMES = ["bf16", "w8a16_g128", "w4a16_g128", "w4a16_g128_asym", "w3a16_g128_asym",
                "w2a16_g64_asym", "w2a16_g-1_asym"]
FREQUENCY_TOKENS = 24576   # that static sets are chosen by
PLAN_TOKENS = 6144         # that plans are made by
WINDOW = 256
WARM = 1           # windows that are run and not counted
WINDOWS = 25       # of every domain
LONG_WINDOWS = 127 # where only transitions are counted: nearly all there is
BLOCK = 2          # windows whose mean is one sample
LINK_GBPS = 0.08   # an expert of tiny-moe in bf16 then takes 0.6 ms, as one of Qwen3-30B-A3B at 16 GB/s
SHIFT_WINDOW = 128
SHIFT_SEGMENT = 1024
SHIFTS = 20
DEMOTED = [4, 8, 16, 24]
TRACES = {"stationary": 200, "noisy": 20}   # interval_ms
HYSTERESIS = {"with": "", "without": ",margin=0,noise=0,memory=1", "margin and noise alone": ",memory=1"}
# Cells that short streams say little about, judged over the long ones, too.
LONG_CELLS = [("small-moe", PAIRS[1], 0.125), ("small-moe", PAIRS[2], 0.125)]
METHODS = ["static mixed", "plan", "oracle", "dynaexq", "never-stall"]


class Experiment:
    def __init__(self, args):
        self.args = args
        self.models = dict(m.split("=", 1) for m in args.models)
        os.makedirs(args.work, exist_ok=True)
        self.runs = experiment.Runs(os.path.join(args.work, "runs.jsonl"))
        self.tokens, self.experts = {}, {}
        for domain in DOMAINS:
            words = array.array("H")
            with open(os.path.join(args.eval, f"{domain}.tokens.u16"), "rb") as f:
                words.frombytes(f.read())
            self.tokens[domain] = words
        for model, path in self.models.items():
            with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
                self.experts[model] = json.load(f)["num_experts"]
        self.counted = {}

    # Inputs.

    def stream(self, name, words):
        path = os.path.join(self.args.work, f"{name}.u16")
        if not os.path.exists(path):
            with open(path, "wb") as f:
                f.write(array.array("H", words).tobytes())
        return path

    def evaluated(self, domain, windows=WINDOWS):
        return self.stream(f"{domain}-{windows}", self.tokens[domain][:windows * WINDOW])

    def shifting(self):
        words = array.array("H")
        for i in range(SHIFTS + 1):
            at = i // 3 * SHIFT_SEGMENT
            words += self.tokens[DOMAINS[i % 3]][at:at + SHIFT_SEGMENT]
        return self.stream(f"shifting-{SHIFT_SEGMENT}", words)

    def pack(self, model):
        return os.path.join(self.args.work, f"{model}.pack")

    def frequencies(self, model):
        return os.path.join(self.args.work, f"{model}.calibration")

    def sensitivities(self, model):
        return os.path.join(self.args.work, f"{model}.plan-calibration")

    def prepare(self, model):
        tokens = ["--tokens", lib.calibration_files(self.args.calib), "--calibration-tokens"]
        calls = {
            self.pack(model): ["quantize", "--schemes", ",".join(SCHEMES), "--method", "hqq"],
            self.frequencies(model): ["calibrate", *tokens, str(FREQUENCY_TOKENS), "--schemes",
                                      "w2a16_g-1_asym", "--method", "rtn", "--probe-tokens", "0"],
            self.sensitivities(model): ["calibrate", *tokens, str(PLAN_TOKENS), "--schemes",
                                        ",".join(PLAN_SCHEMES), "--method", "hqq", "--probe-tokens", "0"]}
        for path, call in calls.items():
            if not os.path.exists(path):
                subprocess.run([self.tool("moert-pack"), *call, "--model", self.models[model], "--out",
                                path, "--quiet"], check=True)

    # Runs: a job is a command that prints JSON, and a key that names it without paths.

    def tool(self, name):
        return os.path.join(self.args.binaries, name)

    def command(self, model, tokens, strategy, budget="100%", window=WINDOW, pack=None, decode=False):
        # Where nothing moves, a window a step gives the same bits as a token a step, sooner.
        still = strategy.startswith(("resident", "static-mixed")) and not decode
        return [self.tool("moert-run"), "ppl", "--model", self.models[model], "--experts",
                pack or self.pack(model), "--tokens", tokens, "--window", str(window),
                *([] if still else ["--step-tokens", "1", "--batch", "1"]), "--backend", "cpu", "--threads", "1", "--clock", "virtual",
                "--link-gbps", f"{LINK_GBPS:g}", "--budget", str(budget), "--strategy", strategy,
                "--json", "-", "--quiet"]

    def job(self, model, tokens, strategy, budget="100%", window=WINDOW):
        key = [model, os.path.basename(tokens), strategy.replace(self.args.work, ""), str(budget), window]
        return self.command(model, tokens, strategy, budget, window), key

    def helper(self, what, key, *args):
        """A job that this script does itself, in a process of its own."""
        return [sys.executable, os.path.abspath(__file__), what] + [str(a) for a in args], [what] + key

    def count_job(self, model, domain, windows=WINDOWS):
        path = self.evaluated(domain, windows)
        command = self.command(model, path, "resident:scheme=bf16", decode=True)
        return self.helper("count", [model, os.path.basename(path)], self.experts[model],
                           WARM * WINDOW, json.dumps(command))

    def plan_job(self, model, size):
        """A plan of at most `size` bytes, quantized and run over the domains."""
        name = f"{model}-{size}"
        plan, pack = (os.path.join(self.args.work, f"{name}.{x}") for x in ("plan", "planned"))
        commands = [[self.tool("moert-pack"), "allocate", "--calibration", self.sensitivities(model),
                     "--budget", str(size), "--loss", "relative", "--name", "plan", "--out", plan, "--quiet"],
                    [self.tool("moert-pack"), "quantize", "--model", self.models[model], "--plan", plan,
                     "--method", "hqq", "--threads", "1", "--out", pack, "--quiet"]]
        commands += [self.command(model, self.evaluated(d), "resident", pack=pack) for d in DOMAINS]
        return self.helper("plan", [name], plan, json.dumps(commands))

    def overlap_job(self, model, strategy, share):
        command = self.command(model, self.shifting(), strategy, window=SHIFT_WINDOW)
        return self.helper("overlap", [model, SHIFT_SEGMENT, strategy], self.experts[model], share,
                           json.dumps(command))

    def get(self, job):
        return self.runs.get(*job)

    def all(self, jobs):
        return self.runs.get_all(jobs, self.args.jobs)

    def hot(self, model, domain, share, coldest=False, windows=WINDOWS):
        """The set of the experts that a stream selects most (least), as strategies take it."""
        n = int(share * self.experts[model] + 1e-9)
        sets = []
        for layer in self.get(self.count_job(model, domain, windows)):
            sign = 1 if coldest else -1
            order = sorted(range(len(layer)), key=lambda e: (sign * layer[e], e))
            sets.append("-".join(map(str, sorted(order[:n]))))
        return "/".join(sets)


# The variants that are compared.

def keys_of(pair, share):
    return f"hi={pair[0]},lo={pair[1]},hi_fraction={share}"


def cells():
    return [(pair, share) for pair in PAIRS for share in SHARES]


def uniform_jobs(e, model, scheme, windows=WINDOWS):
    return [e.job(model, e.evaluated(d, windows), f"resident:scheme={scheme}") for d in DOMAINS]


def dynaexq_jobs(e, model, pair, share, windows=WINDOWS):
    return [e.job(model, e.evaluated(d, windows), f"dynaexq:{keys_of(pair, share)}") for d in DOMAINS]


def mixed_jobs(e, model, pair, share):
    keys = f"{keys_of(pair, share)},calibration={e.frequencies(model)}"
    return [e.job(model, e.evaluated(d), f"static-mixed:{keys}") for d in DOMAINS]


def oracle_jobs(e, model, pair, share, windows=WINDOWS):
    return [e.job(model, e.evaluated(d, windows), f"static-mixed:{keys_of(pair, share)},"
                                                  f"hot={e.hot(model, d, share, windows=windows)}")
            for d in DOMAINS]


def long_jobs(e, model, pair, share):
    """All but the oracle, whose set must be counted first."""
    return {"lo": uniform_jobs(e, model, pair[1], LONG_WINDOWS),
            "hi": uniform_jobs(e, model, pair[0], LONG_WINDOWS),
            "dynaexq": dynaexq_jobs(e, model, pair, share, LONG_WINDOWS)}


def never_stall_jobs(e, model, pair, share):
    # 100% is the fixed parts and every expert in hi; replace the latter by what dynaexq holds.
    same = e.get(dynaexq_jobs(e, model, pair, share)[0])
    budget = same["budget_bytes"] - e.get(uniform_jobs(e, model, pair[0])[0])["pool_bytes"]
    return [e.job(model, e.evaluated(d), f"graded:wait=0,hi={pair[0]},lo={pair[1]}",
                  budget + same["pool_bytes"]) for d in DOMAINS]


def plan_jobs(e, model, pair, share):
    return [e.plan_job(model, e.get(dynaexq_jobs(e, model, pair, share)[0])["pool_bytes"])]


def hysteresis_jobs(e, model):
    return {(trace, name): [e.job(model, e.evaluated(d, LONG_WINDOWS), f"dynaexq:{keys_of(PAIRS[1], 0.25)},"
                                                         f"interval_ms={interval}{keys}")
                            for d in DOMAINS]
            for trace, interval in TRACES.items() for name, keys in HYSTERESIS.items()}


def demotion_jobs(e, model):
    jobs = {}
    for name, keep_coldest in (("coldest first", False), ("hottest first", True)):
        for low in DEMOTED:
            share = (e.experts[model] - low) / e.experts[model]
            jobs[name, low] = [e.job(model, e.evaluated(d),
                                     f"static-mixed:{keys_of(PAIRS[1], share)},"
                                     f"hot={e.hot(model, d, share, keep_coldest)}") for d in DOMAINS]
    return jobs


def shift_jobs(e, model):
    pair, share = PAIRS[1], 0.25
    keys = keys_of(pair, share)
    specs = {"static low": f"resident:scheme={pair[1]}", "static high": f"resident:scheme={pair[0]}",
             "static mixed, offline": f"static-mixed:{keys},calibration={e.frequencies(model)}",
             "static mixed, first domain": f"static-mixed:{keys},hot={e.hot(model, DOMAINS[0], share)}",
             "dynaexq": f"dynaexq:{keys}"}
    return {name: e.job(model, e.shifting(), spec, window=SHIFT_WINDOW) for name, spec in specs.items()}


def run_all(e):
    for model in e.models:
        e.prepare(model)
    jobs = []
    for model in reversed(e.models):  # the long runs first
        jobs += [e.count_job(model, d) for d in DOMAINS]
        jobs += sum((dynaexq_jobs(e, model, *cell) for cell in cells()), [])
        jobs += sum(hysteresis_jobs(e, model).values(), [])
        jobs += sum((uniform_jobs(e, model, scheme) for scheme in SCHEMES), [])
        jobs += sum((mixed_jobs(e, model, *cell) for cell in cells()), [])
        jobs.append(e.overlap_job(model, f"dynaexq:{keys_of(PAIRS[1], 0.25)}", 0.25))
    for model, pair, share in LONG_CELLS:
        jobs += [e.count_job(model, d, LONG_WINDOWS) for d in DOMAINS]
        jobs += sum(long_jobs(e, model, pair, share).values(), [])
    e.all(jobs)
    jobs = []
    for model in reversed(e.models):
        jobs += sum((plan_jobs(e, model, *cell) for cell in cells()), [])
        jobs += sum((never_stall_jobs(e, model, *cell) for cell in cells()), [])
        jobs += sum((oracle_jobs(e, model, *cell) for cell in cells()), [])
        jobs += sum(demotion_jobs(e, model).values(), [])
        jobs += list(shift_jobs(e, model).values())
    for model, pair, share in LONG_CELLS:
        jobs += oracle_jobs(e, model, pair, share, LONG_WINDOWS)
    e.all(jobs)


# The figures that are kept.

def blocks(windows):
    """Means of neighbouring windows, all domains one behind the other."""
    out = []
    for w in windows:
        judged = w[WARM:]
        out += [round(lib.mean(judged[i:i + BLOCK]), 6) for i in range(0, len(judged), BLOCK)]
    return out


def entry(results):
    return {"bytes": results[0]["pool_bytes"], "nll": blocks([r["window_nll"] for r in results]),
            "stall_ms": sum(r["stall_ms"]["total"] for r in results)}


def moves(results):
    return sum(r["precision"]["promotions"] + r["precision"]["demotions"] for r in results)


def low_answers(results):
    """Share of the lookups that the low version answered."""
    return round(sum(r["experts"]["low_answers"] for r in results) /
                 sum(r["experts"]["lookups"] for r in results), 5)


def collect(e):
    """What has not been run is left out."""
    def have(jobs):
        return all(e.runs.name(*job) in e.runs.known for job in jobs)

    def results(jobs):
        return [e.get(job) for job in jobs]

    data = {"equal": {}, "long": {}, "hysteresis": {}, "demotion": {}, "shift": {}, "experts": e.experts,
            "step_ms": {m: e.get(dynaexq_jobs(e, m, *cells()[0])[0])["tpot_ms"]["mean"] for m in e.models}}
    for model in e.models:
        equal = {"uniform": {s: entry(results(uniform_jobs(e, model, s))) for s in SCHEMES}}
        for pair, share in cells():
            cell = {}
            for method, jobs in (("static mixed", mixed_jobs), ("oracle", oracle_jobs),
                                 ("dynaexq", dynaexq_jobs), ("never-stall", never_stall_jobs)):
                if have(jobs(e, model, pair, share)):
                    cell[method] = entry(results(jobs(e, model, pair, share)))
            if "never-stall" in cell:
                cell["never-stall"]["low_answers"] = low_answers(
                    results(never_stall_jobs(e, model, pair, share)))
            jobs = plan_jobs(e, model, pair, share)
            if have(jobs):
                plan = e.get(jobs[0])
                cell["plan"] = entry(plan["runs"]) | {"bytes": plan["summary"]["bytes"],
                                                      "shares": plan["summary"]["shares"]}
            equal[f"{pair[0]} {pair[1]} {share}"] = cell
        data["equal"][model] = equal
        for name, pair, share in LONG_CELLS:
            jobs = long_jobs(e, model, pair, share) | {
                "oracle": oracle_jobs(e, model, pair, share, LONG_WINDOWS)}
            if name == model and have(sum(jobs.values(), [])):
                data["long"][f"{model} {pair[0]} {pair[1]} {share}"] = {
                    what: entry(results(js))["nll"] for what, js in jobs.items()}
        hysteresis = hysteresis_jobs(e, model)
        if have(sum(hysteresis.values(), [])):
            data["hysteresis"][model] = {
                f"{trace}, {name}": entry(results(jobs)) | {"moves": moves(results(jobs))}
                for (trace, name), jobs in hysteresis.items()}
        demotion = demotion_jobs(e, model)
        if have(sum(demotion.values(), [])):
            data["demotion"][model] = {f"{name} {low}": entry(results(jobs))["nll"]
                                       for (name, low), jobs in demotion.items()}
        shift, overlap = shift_jobs(e, model), e.overlap_job(model, f"dynaexq:{keys_of(PAIRS[1], 0.25)}",
                                                             0.25)
        if have([*shift.values(), overlap]):
            data["shift"][model] = {name: lib.rounded(e.get(job)["window_nll"])
                                    for name, job in shift.items()} | {"overlap": e.get(overlap)}
    return data


# The script's own work, in processes of its own.

def count(experts, skip, command):
    """Selections of every expert by layer, from the routing trace of a run of one token a step."""
    experts, skip = int(experts), int(skip)
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "trace")
        subprocess.run(json.loads(command) + ["--trace", path], check=True, stdout=subprocess.DEVNULL)
        with open(path, "rb") as f:
            data = f.read()
    assert data[:8] == b"moerttrc"
    at = 16 + struct.unpack_from("<I", data, 12)[0]
    counts = []
    while at < len(data):
        size, _, flags, layer, tokens = struct.unpack_from("<QBBHI", data, at)
        ids_at = at + 72 + (8 * tokens if flags & 4 else 0)
        scores = (1 if flags & 1 else 0) + (1 if flags & 2 else 0)
        k = ((size - (ids_at - at)) // tokens - scores * 2 * experts) // 4
        while len(counts) <= layer:
            counts.append([0] * experts)
        if struct.unpack_from("<q", data, at + 16)[0] >= skip:
            for expert in struct.unpack_from(f"<{tokens * k}H", data, ids_at):
                counts[layer][expert] += 1
        at += size
    return counts


def plan(path, commands):
    commands = json.loads(commands)
    for command in commands[:2]:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(path, encoding="utf-8") as f:
        summary = json.load(f)["summary"]
    runs = [json.loads(subprocess.run(c, check=True, capture_output=True, text=True).stdout)
            for c in commands[2:]]
    return {"summary": summary, "runs": runs}


def overlap(experts, share, command):
    """Share of each domain's own high set that is high, by tokens since the change: mean and standard
    deviation over the shifts. The own set: who is high most of the time in the second half of the
    domain's segments."""
    n = int(float(share) * int(experts))
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "trace")
        subprocess.run(json.loads(command) + ["--trace", path], check=True, stdout=subprocess.DEVNULL)
        with open(path + ".perfetto.json", encoding="utf-8") as f:
            events = json.load(f)["traceEvents"]
    steps = sorted(ev["ts"] + ev["dur"] for ev in events if ev.get("name") == "decode")
    moves = sorted((ev["ts"] + ev["dur"], ev["args"]["layer"], ev["args"]["expert"], ev["args"]["bytes"])
                   for ev in events if ev.get("name", "").startswith("background"))
    high_bytes = max(m[3] for m in moves)
    sets, at = [], 0
    now = [set(range(n)) for _ in range(1 + max(m[1] for m in moves))]
    for end in steps:
        while at < len(moves) and moves[at][0] <= end:
            _, layer, expert, size = moves[at]
            (now[layer].add if size == high_bytes else now[layer].discard)(expert)
            at += 1
        sets.append([frozenset(layer) for layer in now])
    own = []
    for d in range(3):
        own.append([])
        for layer in range(len(now)):
            times = {}
            for i, step in enumerate(sets):
                if i // SHIFT_SEGMENT % 3 == d and i % SHIFT_SEGMENT >= SHIFT_SEGMENT // 2:
                    for expert in step[layer]:
                        times[expert] = times.get(expert, 0) + 1
            own[d].append(set(sorted(times, key=lambda x: (-times[x], x))[:n]))
    points = []
    for since in range(0, SHIFT_SEGMENT, 16):
        values = []
        for s in range(1, SHIFTS + 1):
            step = sets[s * SHIFT_SEGMENT + since]
            values.append(lib.mean([len(high & own[s % 3][layer]) / n for layer, high in enumerate(step)]))
        m = experiment.mean_of(values)
        points.append([since, round(m.mean, 4), round(m.error * m.n ** 0.5, 4)])
    return {"points": points,
            "stalls": sum(1 for ev in events if ev.get("ph") == "X" and ev.get("tid") == 2)}


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("count", "plan", "overlap"):
        print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("models", nargs="*", metavar="NAME=DIR")
    parser.add_argument("--calib", help="folder of calibration tokens")
    parser.add_argument("--eval", default=str(lib.ROOT / "tests" / "data" / "eval"))
    parser.add_argument("--binaries", default=str(lib.ROOT / "build" / "release" / "lab"))
    parser.add_argument("--work", default="build/quality-dynaexq")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a thread each")
    args = parser.parse_intermixed_args()
    if args.what == "measure":
        if not args.calib or not args.models:
            parser.error("measure needs --calib, a folder of tokens, and models")
        e = Experiment(args)
        run_all(e)
        lib.save(JSON, collect(e))
    import quality_dynaexq_page  # reads what is declared here
    quality_dynaexq_page.write(lib.load(JSON))


if __name__ == "__main__":
    main()
