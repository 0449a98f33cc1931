"""What the scripts that measure quality share: running the tools, and statistics over windows."""
import json
import math
import os
import pathlib
import re
import subprocess

DOMAINS = ["wikitext2", "gsm8k", "humaneval"]
CALIBRATION = {"wikitext2": "wikitext2-train", "gsm8k": "gsm8k-train", "humaneval": "python-stdlib"}
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Tools:
    """The command line tools of one build, with one cache."""

    def __init__(self, binaries, work):
        self.binaries = pathlib.Path(binaries)
        self.work = pathlib.Path(work)
        self.work.mkdir(parents=True, exist_ok=True)

    def run(self, tool, *args):
        command = [str(self.binaries / tool)] + [str(a) for a in args]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return done.stdout

    def window_nll(self, model, tokens, *args):
        """Mean NLL of every window of a token file."""
        out = self.run("moert-run", "ppl", "--model", model, "--tokens", tokens, "--cache",
                       self.work / "cache", "--json", "-", "--quiet", *args)
        return json.loads(out)["window_nll"]

    def info(self, pack):
        return json.loads(self.run("moert-pack", "info", pack, "--json", "-"))


def mean(values):
    return sum(values) / len(values)


def perplexity(windows):
    return math.exp(mean(windows))


def difference(a, b):
    """Mean of a - b over windows and the half width of its 95 % interval."""
    d = [x - y for x, y in zip(a, b, strict=True)]
    m = mean(d)
    variance = sum((x - m) ** 2 for x in d) / (len(d) - 1)
    return m, 1.96 * math.sqrt(variance / len(d))


def pooled(by_domain):
    """The windows of all domains, one list behind the other."""
    return [v for domain in DOMAINS for v in by_domain[domain]]


def calibration_files(folder, domains=None):
    return ",".join(str(pathlib.Path(folder) / f"{CALIBRATION[d]}.tokens.u16")
                    for d in domains or DOMAINS)


def load(path):
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, data):
    """Atomically: a measurement that is interrupted goes on behind its last result."""
    text = json.dumps(data, indent=1, sort_keys=True)
    # A list of numbers on a line of its own is readable; a number a line is not.
    text = re.sub(r"\[\s+([-+0-9.e,\s]+?)\s+\]",
                  lambda m: "[" + re.sub(r"\s+", " ", m.group(1)) + "]", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text + "\n")
    os.replace(part, path)


def rounded(windows):
    return [round(v, 6) for v in windows]
