#!/usr/bin/env python3
"""Ours and rivals in turns, on one machine at one commit; every sample is kept.

    side_by_side.py PLAN --out FILE [--set KEY=VALUE ...] [--rounds 5] [--copier BIN --gbps 25] [--cells WORD ...]
    side_by_side.py --show FILE

PLAN is a JSON file (tests/research/sittings): a question, its cells, and the programs with the settings that are
tried of each. First every setting of a program that has several runs once in each cell, and the best is taken.
Then the programs take turns, the first of a round another each time. FILE keeps the samples of both parts, the
commands, versions, the commit and the device; samples that it has are not measured again, so that a sitting which
was cut short goes on. The tables take docs/results/data/sitting-*.json.

A command is a list of words with {KEY}s, from --set, from the cell and from the setting; a word that is one {KEY}
of a list becomes its words. The program prints JSON, at least as its last line, and `sample` is the path of its
figure or figures there. A command that several cells share runs once a round. Programs and settings with `cells`
take part in the cells whose names hold one of these words; programs with `rounds`, in so many of the first. In place
of `cells` a plan may have `axes`: a cell is one entry of each.
With --copier another program moves pinned memory to the device at that rate meanwhile, in pieces of 256 KiB, so
that a faster link stands for a slower one. It spins: leave it a CPU that no program has, since programs whose threads
wait for each other crawl without. The tree must be committed and the device otherwise idle.
"""
import argparse
import contextlib
import hashlib
import itertools
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


def figures(text):
    """The JSON that a program printed, alone or as its last line."""
    try:
        return json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.startswith(("{", "["))]
        return json.loads(lines[-1] if lines else text)


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
        self.cells = cells_planned(plan)
        self.sign = 1 if plan["better"] == "more" else -1
        self.printed = {}  # what a command printed in a round, for other cells that share it

    def run(self, cell, subject, setting, part, number):
        """Keeps a run's figures; a setting that fails in the sweep is kept as failed."""
        kept = {"cell": cell, "subject": subject["name"], "setting": setting, "part": part, "round": number}
        if any(kept.items() <= sample.items() for sample in self.data["samples"]):
            return
        chosen = subject["settings"][setting]
        values = {**self.values, **self.cells[cell], **chosen.get("values", {})}
        values = {k: filled([v], self.values)[0] if isinstance(v, str) else v for k, v in values.items()}
        command = filled(subject["command"], values)
        env = {k: filled([v], values)[0] for k, v in {**subject.get("env", {}), **chosen.get("env", {})}.items()}
        line = " ".join([*(f"{k}={v}" for k, v in env.items()), *command])
        kept["command"] = without_folders(line)
        try:
            if (line, part, number) not in self.printed:
                self.printed[line, part, number] = figures(output(command, env))
            kept["values"] = at(self.printed[line, part, number], filled([subject["sample"]], values)[0])
        except (RuntimeError, ValueError, KeyError, IndexError) as error:
            if part == "turns":
                raise
            kept["failed"] = without_folders(str(error).strip()[-300:])  # a program says why at its end
        self.data["samples"].append(kept)
        self.save()
        print(cell, subject["name"], setting, kept.get("values") or f"failed: {kept['failed']}", flush=True)

    def best(self, cell, subject, settings):
        if len(settings) == 1:
            return settings[0]
        found = values_of(self.data, cell, subject["name"], "sweep")
        if not found:
            raise SystemExit(f"{cell}: no setting of {subject['name']} ran")
        return max(found, key=lambda s: self.sign * statistics.median(found[s]))

    def measure(self, cells, rounds):
        for cell in cells:
            chosen = []
            for subject in (s for s in self.plan["subjects"] if takes_part(s, cell)):
                settings = [name for name, of in subject["settings"].items() if takes_part(of, cell)]
                for setting in settings if len(settings) > 1 else ():
                    self.run(cell, subject, setting, "sweep", 0)
                chosen.append((subject, self.best(cell, subject, settings)))
            for number in range(rounds):
                first = number % len(chosen)
                for subject, setting in chosen[first:] + chosen[:first]:
                    if number < subject.get("rounds", rounds):
                        self.run(cell, subject, setting, "turns", number)


def cells_planned(plan):
    """{name: values}"""
    crossed = itertools.product(*(axis.items() for axis in plan.get("axes", [])))
    of_axes = {", ".join(name for name, _ in parts): {k: v for _, values in parts for k, v in values.items()}
               for parts in crossed if parts}
    return plan.get("cells", of_axes)


def takes_part(of, cell):
    return any(word in cell for word in of.get("cells", [""]))


def values_of(data, cell, subject, part):
    """{setting: samples}"""
    found = {}
    for s in data["samples"]:
        if (s["cell"], s["subject"], s["part"]) == (cell, subject, part) and "values" in s:
            found.setdefault(s["setting"], []).extend(s["values"])
    return found


def device(options):
    """The one device, if no other program uses it; `card` tells two of a kind apart."""
    if options.device:
        return options.device
    query = ["nvidia-smi", "--format=csv,noheader", f"--id={os.environ.get('CUDA_VISIBLE_DEVICES', '0')}"]
    if output([*query, "--query-compute-apps=pid"]).strip():
        raise SystemExit("the device is in use: a sitting needs it alone")
    name, driver, card = output([*query, "--query-gpu=name,driver_version,uuid"]).strip().split(", ")
    return {"device": name, "driver": driver, "card": hashlib.sha256(card.encode()).hexdigest()[:8]}


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


def take_over(kept, now):
    """Goes on with a sitting that was cut short, of this commit on this device."""
    same = all(kept[key] == now[key] for key in ("question", "commit", "device", "link"))
    if not same or {**kept["versions"], **now["versions"]} != {**now["versions"], **kept["versions"]}:
        raise SystemExit("the file is of another sitting: of another commit, device, link or program")
    now["versions"], now["samples"] = {**kept["versions"], **now["versions"]}, kept["samples"]


def measure(options):
    plan = json.loads(options.plan.read_text(encoding="utf-8"))
    plan["subjects"] = [s for s in plan["subjects"] if s["name"] not in options.without]
    values = dict(pair.split("=", 1) for pair in options.set)
    versions = {s["name"]: output(filled(s["version"], values)).strip() for s in plan["subjects"] if "version" in s}
    data = {"question": plan["question"], "unit": plan["unit"], "better": plan["better"],
            "readme": plan.get("readme", {}), "ours": [s["name"] for s in plan["subjects"] if s.get("ours")],
            "commit": commit(), "device": device(options), "machine": {"cpu": cpu(), "cpus": os.cpu_count()},
            "link": {"copier_gbps": options.gbps, "piece_kib": PIECE_KIB} if options.copier else {},
            "rounds": options.rounds, "versions": versions, "samples": []}
    if options.out.exists():
        take_over(json.loads(options.out.read_text(encoding="utf-8")), data)
    save = lambda: options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    cells = [c for c in cells_planned(plan) if not options.cells or any(word in c for word in options.cells)]
    with copier(options):
        Sitting(plan, values, data, save).measure(cells, options.rounds)
    print(table(data))


# Tables

def cells_of(data):
    return list(dict.fromkeys(s["cell"] for s in data["samples"] if s["part"] == "turns"))


def subjects_of(data):
    """Ours first."""
    return sorted(dict.fromkeys(s["subject"] for s in data["samples"]), key=lambda name: name not in data["ours"])


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


def shortened(text):
    """A cell's name, or a text with such names, as tables have it."""
    return text.replace(" routing", "")


def table(data):
    """The head has the setting that a program has most often, and a cell another."""
    turns = {(c, s): values_of(data, c, s, "turns") for c in cells_of(data) for s in subjects_of(data)}
    usual = {s: statistics.mode(name for c in cells_of(data) for name in turns[c, s]) for s in subjects_of(data)}
    head = [f"{s}, `{setting}`" for s, setting in usual.items()]
    rows = []
    for cell in cells_of(data):
        row = [shortened(cell)]
        for subject in subjects_of(data):
            if not turns[cell, subject]:
                row.append("-")
                continue
            (setting, values), = turns[cell, subject].items()
            text = f"{figure(statistics.median(values))} ({figure(min(values))} to {figure(max(values))})"
            row.append(text if setting == usual[subject] else f"{text}, `{setting}`")
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
    texts = [f"{data['question']}, {link(data)}, at {data['commit'][:8]}:\n\n{table(data)}\n\nLost: {shortened('; '.join(lost(data))) or 'none'}."
             for data in sittings()]
    return "\n\n".join(texts) or "No sitting is kept yet."


def readme_rows(data):
    """A row for each group of cells: `readme` of the plan has a group's title by the words that its cells begin with."""
    of, ours, before = medians(data), set(data["ours"]), None
    for words, title in data["readme"].items():
        cells = [c for c in of if c.startswith(words)]
        if not cells:
            continue
        line = lambda s: f"{s} " + ", ".join(figure(of[c][s]) if s in of[c] else "-" for c in cells)
        told = lambda subjects: "; ".join(line(s) for s in subjects if any(s in of[c] for c in cells))
        mine, theirs = ([s for s in subjects_of(data) if (s in ours) == own] for own in (True, False))
        short = lambda texts: shortened("; ".join(t.removeprefix(words) for t in texts))
        names, before = before, short(cells)  # a row names its cells if the row before has others
        yield (f"{title}{'' if names == before else f': {before}'}; {data['unit']}", told(mine), told(theirs),
               short(t for t in lost(data) if t.startswith(words)) or "none",
               f"{data['commit'][:8]}, {data['device']['device']}, {link(data)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=pathlib.Path, nargs="?")
    parser.add_argument("--show", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="programs that do not take part")
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
