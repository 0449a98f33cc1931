#!/usr/bin/env python3
"""Ours and rivals in turns, on one machine at one commit; every sample is kept.

    side_by_side.py PLAN --out FILE [--set KEY=VALUE ...] [--rounds 5] [--copier BIN --gbps 25] [--cells WORD ...]
    side_by_side.py --show FILE

PLAN is a JSON file (tests/research/sittings): a question, its cells, and the programs with the settings that are
tried of each. First every setting of every program runs once in each cell, and the best is taken. Then the
programs take turns, the first of a round another each time. FILE keeps the samples of both parts, the commands,
versions, the commit and the device. The tables take docs/results/data/sitting-*.json.

A command is a list of words with {KEY}s, from --set, from the cell and from the setting; a word that is one {KEY}
of a list becomes its words. The program prints JSON, and `sample` is the path of its figure or figures there.
With --copier another program moves pinned memory to the device at that rate meanwhile, in pieces of 256 KiB, so
that a faster link stands for a slower one. The tree must be committed and the device otherwise idle.
"""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

import experiment
import report

PIECE_KIB = 256


def filled(words, values):
    out = []
    for word in words:
        key = re.fullmatch(r"\{(\w+)\}", word)
        if key and isinstance(values.get(key[1]), list):
            out += filled(values[key[1]], values)
        else:
            out.append(re.sub(r"\{(\w+)\}", lambda m: str(values[m[1]]), word))
    return out


def at(value, path):
    for key in path.split("."):
        value = value[int(key) if isinstance(value, list) else key]
    return [float(v) for v in value] if isinstance(value, list) else [float(value)]


def output(command, env=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **(env or {})})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def without_folders(text):
    """Nothing of where files lie on the machine."""
    return re.sub(r"(?<![\w.])/[^\s,=]*/", "", text)


def cpu():
    found = re.search(r"^model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


class Sitting:
    def __init__(self, plan, values, data, save):
        self.plan, self.values, self.data, self.save = plan, values, data, save
        self.sign = 1 if plan["better"] == "more" else -1

    def run(self, cell, subject, setting, part, number):
        """Keeps a run's figures; a setting that fails in the sweep is kept as failed."""
        chosen = subject["settings"][setting]
        values = {**self.values, **self.plan["cells"][cell], **chosen.get("values", {})}
        values = {k: filled([v], self.values)[0] if isinstance(v, str) else v for k, v in values.items()}
        command = filled(subject["command"], values)
        env = {k: filled([v], values)[0] for k, v in {**subject.get("env", {}), **chosen.get("env", {})}.items()}
        kept = {"cell": cell, "subject": subject["name"], "setting": setting, "part": part, "round": number,
                "command": without_folders(" ".join([*(f"{k}={v}" for k, v in env.items()), *command]))}
        try:
            kept["values"] = at(json.loads(output(command, env)), subject["sample"])
        except (RuntimeError, ValueError, KeyError, IndexError) as error:
            if part == "turns":
                raise
            kept["failed"] = without_folders(str(error).strip()[-300:])  # a program says why at its end
        self.data["samples"].append(kept)
        self.save()
        print(cell, subject["name"], setting, kept.get("values") or f"failed: {kept['failed']}", flush=True)

    def best(self, cell, subject):
        found = values_of(self.data, cell, subject["name"], "sweep")
        if not found:
            raise SystemExit(f"{cell}: no setting of {subject['name']} ran")
        return max(found, key=lambda s: self.sign * statistics.median(found[s]))

    def measure(self, cells, rounds):
        subjects = self.plan["subjects"]
        for cell in cells:
            for subject in subjects:
                for setting in subject["settings"]:
                    self.run(cell, subject, setting, "sweep", 0)
            chosen = [(s, self.best(cell, s)) for s in subjects]
            for number in range(rounds):
                first = number % len(chosen)
                for subject, setting in chosen[first:] + chosen[:first]:
                    self.run(cell, subject, setting, "turns", number)


def values_of(data, cell, subject, part):
    """{setting: samples}"""
    found = {}
    for s in data["samples"]:
        if (s["cell"], s["subject"], s["part"]) == (cell, subject, part) and "values" in s:
            found.setdefault(s["setting"], []).extend(s["values"])
    return found


def device(options):
    """The one device, if no other program uses it."""
    if options.device:
        return options.device
    query = ["nvidia-smi", "--format=csv,noheader", f"--id={os.environ.get('CUDA_VISIBLE_DEVICES', '0')}"]
    if output([*query, "--query-compute-apps=pid"]).strip():
        raise SystemExit("the device is in use: a sitting needs it alone")
    name, driver = output([*query, "--query-gpu=name,driver_version"]).strip().split(", ")
    return {"device": name, "driver": driver}


def commit():
    git = ["git", "-C", str(report.ROOT)]
    if output([*git, "status", "--porcelain", "--untracked-files=no"]).strip():
        raise SystemExit("the tree has changes: commit them, so that the figures are of one commit")
    return output([*git, "rev-parse", "--short=12", "HEAD"]).strip()


@contextlib.contextmanager
def copier(options):
    """Takes a part of the link while the block runs."""
    if not options.copier:
        yield
        return
    process = subprocess.Popen([options.copier, str(options.gbps), str(PIECE_KIB)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline().strip() != "copying":
            raise SystemExit(f"{options.copier} did not begin")
        yield
    finally:
        process.stdin.close()  # it ends with its input
        process.wait()


def measure(options):
    plan = json.loads(options.plan.read_text(encoding="utf-8"))
    values = dict(pair.split("=", 1) for pair in options.set)
    versions = {s["name"]: output(filled(s["version"], values)).strip() for s in plan["subjects"] if "version" in s}
    data = {"question": plan["question"], "unit": plan["unit"], "better": plan["better"],
            "readme": plan.get("readme", ""), "ours": [s["name"] for s in plan["subjects"] if s.get("ours")],
            "commit": commit(), "device": device(options), "machine": {"cpu": cpu(), "cpus": os.cpu_count()},
            "link": {"copier_gbps": options.gbps, "piece_kib": PIECE_KIB} if options.copier else {},
            "rounds": options.rounds, "versions": versions, "samples": []}
    save = lambda: options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    cells = [c for c in plan["cells"] if not options.cells or any(word in c for word in options.cells)]
    with copier(options):
        Sitting(plan, values, data, save).measure(cells, options.rounds)
    print(table(data))


# Tables

def cells_of(data):
    return list(dict.fromkeys(s["cell"] for s in data["samples"] if s["part"] == "turns"))


def subjects_of(data):
    return list(dict.fromkeys(s["subject"] for s in data["samples"]))


def figure(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def medians(data):
    """{cell: {subject: median of the turns}}"""
    return {c: {s: statistics.median([v for of in values_of(data, c, s, "turns").values() for v in of])
                for s in subjects_of(data) if values_of(data, c, s, "turns")} for c in cells_of(data)}


def lost(data):
    """["cell to subject"]: where a rival is better than the best of ours."""
    sign, found = (1 if data["better"] == "more" else -1), []
    for cell, of in medians(data).items():
        ours = max(sign * v for s, v in of.items() if s in data["ours"])
        found += [f"{cell} to {s} ({figure(v)})" for s, v in of.items() if s not in data["ours"] and sign * v > ours]
    return found


def table(data):
    """A program names its setting once where it is the best in all cells."""
    turns = {(c, s): values_of(data, c, s, "turns") for c in cells_of(data) for s in subjects_of(data)}
    settings = {s: {name for c in cells_of(data) for name in turns[c, s]} for s in subjects_of(data)}
    head = [f"{s}, `{next(iter(settings[s]))}`" if len(settings[s]) == 1 else s for s in subjects_of(data)]
    rows = []
    for cell in cells_of(data):
        row = [cell]
        for subject in subjects_of(data):
            (setting, values), = turns[cell, subject].items()
            text = f"{figure(statistics.median(values))} ({figure(min(values))} to {figure(max(values))})"
            row.append(text if len(settings[subject]) == 1 else f"{text}, `{setting}`")
        rows.append(row)
    return experiment.table([data["unit"], *head], rows)


def sittings():
    """Those with a free link first."""
    found = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(report.DATA.glob("sitting-*.json"))]
    return sorted(found, key=lambda data: bool(data["link"]))


def link(data):
    return f"link shared with {data['link']['copier_gbps']:g} GB/s" if data["link"] else "link free"


def tables():
    """All sittings that are kept, one table each."""
    texts = [f"{data['question']}, {link(data)}:\n\n{table(data)}\n\nLost: {'; '.join(lost(data)) or 'none'}."
             for data in sittings()]
    return "\n\n".join(texts) or "No sitting is kept yet."


def readme_rows():
    for data in sittings():
        if not data["readme"]:
            continue
        of = medians(data)
        line = lambda s: f"{s} " + ", ".join(figure(of[c][s]) if s in of[c] else "-" for c in of)
        mine, theirs = [s for s in subjects_of(data) if s in data["ours"]], [s for s in subjects_of(data) if s not in data["ours"]]
        yield (f"{data['readme']}: {'; '.join(of)}; {data['unit']}", "; ".join(map(line, mine)), "; ".join(map(line, theirs)),
               "; ".join(lost(data)) or "none", f"{data['commit'][:8]}, {data['device']['device']}, {link(data)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=pathlib.Path, nargs="?")
    parser.add_argument("--show", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--copier")
    parser.add_argument("--gbps", type=float, default=25)
    parser.add_argument("--device", type=json.loads, help="what is written for the device, in place of asking it")
    options = parser.parse_args()
    if options.show:
        data = json.loads(options.show.read_text(encoding="utf-8"))
        print(table(data), "\n".join(lost(data)), sep="\n\n")
        return
    if not options.plan or not options.out:
        parser.error("PLAN and --out are needed")
    measure(options)


if __name__ == "__main__":
    sys.exit(main())
