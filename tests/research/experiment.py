"""Runs of the tools that an experiment repeats, remembered, and the statistics it reports."""
import collections
import concurrent.futures
import hashlib
import json
import math
import os
import subprocess
import sys
import threading


class Runs:
    """Runs commands and keeps every JSON object they print in a file, so that an interrupted
    experiment goes on where it was and its page can be rewritten without running."""

    def __init__(self, path, run_missing=True):
        self.path = path
        self.run_missing = run_missing
        self.lock = threading.Lock()
        self.known = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as lines:
                for line in lines:
                    entry = json.loads(line)
                    self.known[entry["key"]] = entry["result"]
        self.done = 0

    @staticmethod
    def name(command, key):
        return hashlib.sha256(json.dumps(key or command).encode()).hexdigest()[:20]

    def get(self, command, key=None):
        """The object that `command` prints, or None if it has not run and must not. `key` names the
        run without paths."""
        name = self.name(command, key)
        if name not in self.known:
            if not self.run_missing:
                return None
            self.run(command, name)
        self.done += 1
        if sys.stderr.isatty():
            print(f"\r{self.done} runs", end="", file=sys.stderr)
        return self.known[name]

    def get_all(self, jobs, workers=1):
        """get() of every (command, key), those that have not run `workers` at a time."""
        missing = {self.name(*job): job for job in jobs if self.name(*job) not in self.known}
        if self.run_missing:
            with concurrent.futures.ThreadPoolExecutor(workers) as pool:
                list(pool.map(lambda item: self.run(item[1][0], item[0]), missing.items()))
        return [self.get(*job) for job in jobs]

    def run(self, command, name):
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if out.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit {out.returncode}\n{out.stderr}")
        with self.lock:
            self.known[name] = json.loads(out.stdout)
            with open(self.path, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"key": name, "result": self.known[name]}) + "\n")


Mean = collections.namedtuple("Mean", "mean error n")  # error: standard error of the mean


def mean_of(values):
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return Mean(mean, math.nan, n)
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    return Mean(mean, math.sqrt(variance / n), n)


def loss_percent(base, other):
    """Perplexity of `other` over that of `base`, minus 1, in percent, from the windows' nll of both:
    the same windows, so differences are paired. Lists of window nll."""
    assert len(base) == len(other)
    diff = mean_of([o - b for b, o in zip(base, other)])
    ratio = math.exp(diff.mean)
    return Mean(100 * (ratio - 1), 100 * ratio * diff.error, diff.n)


def table(head, rows):
    """A Markdown table; the first column is text, the others are right-aligned."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + ["--:"] * (len(head) - 1)) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def replace_parts(path, parts):
    """Writes each text of `parts` between the marks `<!-- name -->` and `<!-- /name -->` of a page."""
    with open(path, encoding="utf-8") as page:
        text = page.read()
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, rest = text.split(begin, 1)
        text = before + begin + part.rstrip("\n") + "\n" + end + rest.split(end, 1)[1]
    with open(path, "w", encoding="utf-8") as page:
        page.write(text)


def signed(mean, digits=2):
    return f"{mean.mean:+.{digits}f} ± {mean.error:.{digits}f}"
