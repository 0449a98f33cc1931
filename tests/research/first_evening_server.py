#!/usr/bin/env python3
"""First evenings on three emulated machines with llama-server and the plug-in: expected beside measured speed.

    tests/research/first_evening_server.py --server DIR/llama-server --plugin DIR/libggml-moert.so --bin build/dev/bin \\
        --model FILE.gguf --layers N [--gpu [--copier build/cuda/lab/moert-copier --gbps 25]]

FILE is of big_gguf, routed as trained models were recorded to: N of Qwen3-30B-A3B's layers in Q4_0 stand for a published
model, of which the budget is the share that the card holds. A client of the chat API (`openai` where it is installed)
asks; speeds are the server's own `timings`. What a cache of a share misses is known of such files (docs/internals/testing.md).

On the CPU the time of a token without the plug-in is measured, and with a budget of a quarter the time of a byte that is
missing; other shares are expected from both. The file is read once before, so that it is in the page cache. RAM is a
control group's, where one can be made: what the server and the file have beside experts, and the experts that card and
RAM have room for. What it has no room for comes from the disk, at the rate that doctor measures.

With --gpu, one_card.py's sum is expected, from rates of this machine: llama.cpp with all experts on the GPU, what the
plug-in adds to a layer, and the bytes of misses by the link and the CPU together. The link is what doctor measures beside
another program that takes --gbps of it; the CPU's rate is that of llama.cpp's --cpu-moe. RAM is MOERT_PINNED; what it
has no room for comes from the file, through the page cache.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import one_card
import side_by_side
from first_evening import MACHINES, ROOT, compare, finish, run

sys.path.insert(0, str(ROOT / "tests/hosts/llama_cpp"))
import chat_client  # noqa: E402
from running_server import RunningServer  # noqa: E402

# Each as a whole or in parts.
QUESTIONS = [("Write a program that counts the words of a file.", False), ("What is a good evening?", True),
             ("Where does the Danube end?", True)]
EXPERT, TOP_K, EXPERTS = 3 * 2048 * 768 * 4.5 / 8, 8, 128  # big_gguf's; bytes
QUARTER = 0.25
SLACK = 64 << 20  # bytes of a control group that the kernel's tables and the programs' own pages take
# A cache's share of the experts, and of lookups it answers where the file routes as recorded (docs/internals/testing.md).
RECORDED_HITS = [(0, 0), (0.25, 0.57), (0.5, 0.87), (0.75, 0.97), (1, 1)]


def file_rate(path, count=200, piece=9 << 20):
    """Bytes a second of reads of so many bytes each, in any order."""
    places, buffer = random.Random(1), bytearray(piece)
    with open(path, "rb", buffering=0) as file:
        last = max(1, os.fstat(file.fileno()).st_size - piece)
        begin = time.perf_counter()
        for _ in range(count):
            os.preadv(file.fileno(), [buffer], places.randrange(last))
        return count * piece / (time.perf_counter() - begin)


def misses(share):
    for (low, a), (high, b) in zip(RECORDED_HITS, RECORDED_HITS[1:]):
        if share <= high:
            return 1 - (a + (b - a) * (share - low) / (high - low))
    return 0


class Host:
    """llama-server on this machine."""

    def __init__(self, options, folder):
        self.options, self.folder, self.model = options, folder, options.model
        self.words = ["-ngl", "99"] if options.gpu else ["--threads", "1", "--no-repack"]
        self.memory = 0  # bytes, of the last run

    def ms(self, *words, group=0, **environment):
        """Milliseconds a token. With a variable the plug-in is loaded. `group`: bytes of RAM."""
        print("$", *(f"{k}={v}" for k, v in environment.items()), "llama-server -m", self.model.name, *self.words, *words,
              "--no-warmup", flush=True)
        within = self.group(group)
        if environment:
            environment["GGML_BACKEND_PATH"] = self.options.plugin
        inherited = {k: v for k, v in os.environ.items() if k != "GGML_BACKEND_PATH"}
        environment = {**inherited, "OMP_WAIT_POLICY": "passive", "MOERT_STATS": "1", **environment}
        command = [*within, str(self.options.server), "-m", self.model, *self.words, *words, "--no-warmup", "--port", "0",
                   "--offline", "--parallel", "1", "--ctx-size", "2048"]
        with RunningServer(command, {k: str(v) for k, v in environment.items()}, self.folder / "log") as server:
            chat_client.answer(server, "Hello", 32, temperature=1)
            answers = [chat_client.answer(server, question, self.options.tokens, stream, 1) for question, stream in QUESTIONS]
            self.memory = server.memory()
            said = server.end()
        print("\n".join(line for line in said.splitlines() if line.startswith("moert:")))
        ms = min(t["predicted_ms"] / t["predicted_n"] for _, t in answers)  # other programs only add to it
        print(f"{chat_client.NAME}: {answers[0][0][:40]!r}..., {1e3 / ms:.1f} tokens/s\n", flush=True)
        return ms

    def group(self, size):
        """Words in front of a command that limit its RAM, the file's cached pages included."""
        if not size:
            return []
        within = [str(ROOT / "tests/hosts/llama_cpp/in_group.sh"), str(size)]
        if subprocess.run([*within, "true"], check=False).returncode:
            print("RAM is not limited: no control group can be made here")
            return []
        print(f"RAM: a control group of {size >> 20} MiB")
        with open(self.model, "rb") as file:  # pages are counted where they are read first
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return [*within, "bash", "-c", 'cat "$0" >/dev/null && exec "$@"', str(self.model)]


def doctor(options):
    return json.loads(run([str(options.bin / "moert-run"), "doctor", str(options.model), "--seconds", "0.3", "--json", "-"]))


def on_the_cpu(options, host):
    disk = doctor(options)["disk_bytes_per_s"]
    experts, token = EXPERT * EXPERTS * options.layers, EXPERT * TOP_K * options.layers
    seconds = {}  # a token, of the fastest round

    def measure(key, **more):
        found = 1e-3 * host.ms(**more)
        seconds[key] = min(found, seconds.get(key, found))

    for _ in range(options.rounds):
        subprocess.run(["cat", options.model], stdout=subprocess.DEVNULL, check=True)
        measure("all")
        measure("quarter", MOERT_BUDGET=f"{100 * QUARTER:.0f}%")
        beside = host.memory - QUARTER * experts + options.model.stat().st_size - experts + SLACK
        for machine in MACHINES:
            print(machine.title())
            measure(machine.name, MOERT_BUDGET=f"{100 * machine.share:.0f}%",
                    group=int(beside + (machine.share + machine.pinned) * experts))
    byte = (seconds["quarter"] - seconds["all"]) / (token * misses(QUARTER))
    if byte <= 0:
        sys.exit("a budget of a quarter costs nothing: other programs keep this machine busy, try more --rounds")
    print(f"a token with all experts {1e3 * seconds['all']:.1f} ms; missing bytes come at {1e-9 / byte:.2f} GB/s, from the "
          f"disk at {1e-9 * disk:.2f}\n")
    for machine in MACHINES:
        print(machine.title())
        expected = 1 / (seconds["all"] + token * misses(machine.share) * (byte + (1 - machine.pinned) / disk))
        yield compare(machine, expected, 1 / seconds[machine.name], own_ms=1e3 * seconds["all"], missing_gbps=1e-9 / byte,
                      disk_gbps=1e-9 * disk)


def on_the_gpu(options, host):
    found = doctor(options)
    link, device = found["device"]["link_bytes_per_s"], one_card.DEVICE_SHARE * found["device"]["memory_bytes_per_s"]
    token, file = EXPERT * TOP_K * options.layers, file_rate(options.model)
    own, by_cpu = 1e-3 * host.ms(), 1e-3 * host.ms("--cpu-moe")
    cpu = token / (by_cpu - own - options.layers * one_card.CPU_LAYER_S + token / device)
    print(f"a token with all experts on the GPU {1e3 * own:.2f} ms; GB/s: link {link * 1e-9:.1f}, CPU {cpu * 1e-9:.1f}, "
          f"file {file * 1e-9:.1f}\n")
    for machine in MACHINES:
        print(machine.title())
        byte = 1 / (link + cpu) + machine.from_file / file - 1 / device  # seconds of one that is missing
        expected = 1 / (own + options.layers * one_card.SHARED_S + token * misses(machine.share) * byte)
        pinned = {"MOERT_PINNED": int(machine.pinned * EXPERT * EXPERTS * options.layers)} if machine.pinned < 1 else {}
        measured = 1e3 / host.ms("-ot", "exps=CPU", MOERT_BUDGET=f"{100 * machine.share:.0f}%", **pinned)
        yield compare(machine, expected, measured, own_ms=1e3 * own, link_gbps=link * 1e-9, cpu_gbps=cpu * 1e-9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--server", type=pathlib.Path, required=True)
    parser.add_argument("--plugin", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/dev/bin")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--layers", type=int, required=True, help="of the model")
    parser.add_argument("--copier", type=pathlib.Path)
    parser.add_argument("--gbps", type=float, default=25, help="taken from the link")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1, help="on the CPU: the fastest counts, other programs only slow down")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.plugin = options.plugin.resolve()
    with tempfile.TemporaryDirectory() as folder, side_by_side.copier(options):
        host = Host(options, pathlib.Path(folder))
        rows = list((on_the_gpu if options.gpu else on_the_cpu)(options, host))
    finish(rows, options.json)


if __name__ == "__main__":
    main()
