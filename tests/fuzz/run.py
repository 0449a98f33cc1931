#!/usr/bin/env python3
"""Runs the libFuzzer programs for some processor time and keeps account of it.

    tests/fuzz/run.py --state DIR [--programs build/fuzz/tests/fuzz] [--seconds S] [--jobs N]
                      [--targets NAME,...] [--slice S]
    tests/fuzz/run.py --state DIR --report [--targets NAME,...]

DIR gets a corpus a target (started from corpus/ beside this script), findings, and a line for every
run in runs.jsonl: executions, the processor time that the program took, the edges that the corpus
reached before and after. Each of the N processes takes the target with the least processor time so
far for a slice, then the next; processes on one target share its corpus. --report prints the table
of docs/internals/testing.md: sums, and the edges that the corpus reaches. A target with a finding is
not run again; the others go on, and the status is 1. Several DIRs can be reported together:
--state A --state B (edges: those of the corpora together).
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = ["-max_len=16384", "-rss_limit_mb=2048", "-print_final_stats=1", "-reload=1"]


def program(args, target):
    return os.path.join(args.programs, f"{target}_fuzz")


def load(state):
    try:
        with open(os.path.join(state, "runs.jsonl")) as f:
            return [json.loads(line) for line in f]
    except FileNotFoundError:
        return []


class Fuzzing:
    def __init__(self, args, targets):
        self.args, self.state = args, args.state[0]
        self.lock = threading.Lock()
        self.deadline = time.monotonic() + args.seconds
        self.findings = set()  # targets
        self.cpu = {t: 0.0 for t in targets}
        self.running = {t: 0 for t in targets}
        for run in load(self.state):
            if run["target"] in self.cpu:
                self.cpu[run["target"]] += run["cpu_s"]
        for target in targets:
            corpus = os.path.join(self.state, "corpus", target)
            if not os.path.isdir(corpus):
                shutil.copytree(os.path.join(args.seeds, target), corpus)
            os.makedirs(os.path.join(self.state, "findings"), exist_ok=True)

    def work(self):
        while True:
            left = self.deadline - time.monotonic()
            seconds = int(min(self.args.slice, left))
            with self.lock:
                targets = self.cpu.keys() - self.findings
                if left < 2 or not targets:
                    return
                # A running target counts as if it took its whole slice, so that processes spread.
                target = min(sorted(targets), key=lambda t: self.cpu[t] +
                             self.args.slice * self.running[t])
                self.running[target] += 1
            self.one(target, seconds)

    def one(self, target, seconds):
        command = [program(self.args, target), *FLAGS, f"-timeout={self.args.timeout}",
                   f"-max_total_time={seconds}",
                   f"-artifact_prefix={self.state}/findings/{target}-",
                   os.path.join(self.state, "corpus", target)]
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            text = log.read()
        runs = re.findall(r"stat::number_of_executed_units: *(\d+)", text)
        edges = re.findall(r"cov: (\d+)", text) or [0]
        line = {"target": target, "executions": int(runs[-1]) if runs else 0,
                "cpu_s": round(usage.ru_utime + usage.ru_stime, 2), "status": child.returncode,
                "edges": [int(edges[0]), int(edges[-1])]}
        with self.lock:
            self.running[target] -= 1
            self.cpu[target] += line["cpu_s"]
            with open(os.path.join(self.state, "runs.jsonl"), "a") as f:
                f.write(json.dumps(line) + "\n")
            if child.returncode != 0:
                self.findings.add(target)
                print(f"{target}: status {child.returncode}\n{text[-4000:]}", file=sys.stderr)


def fuzz(args, targets):
    fuzzing = Fuzzing(args, targets)
    threads = [threading.Thread(target=fuzzing.work) for _ in range(args.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return 1 if fuzzing.findings else 0


def report(args, targets):
    print("| target | executions | processor s | edges reached | edges in the program | findings |")
    print("|---|---|---|---|---|---|")
    for target in targets:
        runs = [r for s in args.state for r in load(s) if r["target"] == target]
        corpora = [os.path.join(s, "corpus", target) for s in args.state]
        log = subprocess.run([program(args, target), "-runs=0", *FLAGS,
                              *[c for c in corpora if os.path.isdir(c)]],
                             stderr=subprocess.PIPE, text=True, errors="replace").stderr
        edges = re.findall(r"cov: (\d+)", log)
        counters = re.findall(r"\((\d+) inline 8-bit counters\)", log)
        print(f"| {target} | {sum(r['executions'] for r in runs) / 1e6:.2f} M | "
              f"{sum(r['cpu_s'] for r in runs):,.0f} | {int((edges or [0])[-1]):,} | "
              f"{int((counters or [0])[0]):,} | {sum(r['status'] != 0 for r in runs)} |")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.join(HERE, "..", "..")
    parser.add_argument("--programs", default=os.path.join(root, "build", "fuzz", "tests", "fuzz"))
    parser.add_argument("--seeds", default=os.path.join(HERE, "corpus"))
    parser.add_argument("--state", action="append", required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--slice", type=float, default=120)
    parser.add_argument("--timeout", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--targets")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    names = sorted(os.path.basename(p)[:-5]
                   for p in glob.glob(os.path.join(args.programs, "*_fuzz")))
    targets = args.targets.split(",") if args.targets else names
    if not targets or any(t not in names for t in targets):
        parser.error(f"targets in {args.programs}: {', '.join(names) or 'none'}")
    return report(args, targets) if args.report else fuzz(args, targets)


if __name__ == "__main__":
    sys.exit(main())
