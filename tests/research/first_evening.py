#!/usr/bin/env python3
"""First evenings on three emulated machines: transcripts, and the speed that was expected beside the one that came.

    tests/research/first_evening.py --bin build/dev/bin [--library build/dev/capi/libmoert.so] [--json FILE]

The bundled model stands for a published one: its fast tier holds the same share of the experts, and its link is paced so
that the experts of a token take as long as they would there. A virtual clock, told the link's rate, the time of a layer
without transfers and that of a load beside its bytes, expects a speed; the same command on the wall clock measures it.
The model's routing is real. A CPU stands in for the card: products and kernels of a GPU, pinned copies, and a RAM between
disk and card are not emulated: first_evening_gpu.py has them, first_evening_server.py llama-server. Keep the machine idle:
the CPU's own time counts.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import one_card
import origins

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/models/tiny-moe"
TEXT = ROOT / "tests/data/eval/humaneval.tokens.u16"
SYSTEM = 4  # GB of RAM that the rest of a machine keeps
WITHIN = 0.2


@dataclasses.dataclass
class Machine:
    name: str
    model: dict  # of one_card.models()
    share: float  # of the experts: what the card holds
    pinned: float  # what RAM holds
    way: str  # that brings missing experts
    rate: float  # its GB/s

    @property
    def from_file(self):
        """The share of missing experts that RAM has not: it keeps those that are asked for, which the card has not."""
        return max(0.0, 1 - self.share - self.pinned) / (1 - self.share)

    def title(self):
        return (f"## {self.name}: {self.model['name']}, {100 * self.share:.0f} % of its experts on the card, the others by "
                f"{self.way} at {self.rate} GB/s\n")


def machine(card, memory, model, way, rate):
    model = next(m for m in one_card.models() if m["name"] == model)
    share = one_card.room(model, next(c for c in one_card.CARDS if c[0] == card))
    pinned = min(1.0, (memory - SYSTEM) * one_card.GB / one_card.sizes(model)["experts"])
    return Machine(f"{card} card, {memory} GB of RAM", model, share, pinned, way, rate)


MACHINES = [machine("8 GB", 32, "Qwen3-30B-A3B", "PCIe 4", 25), machine("24 GB", 64, "gpt-oss-120b", "PCIe 4", 25),
            machine("24 GB", 128, "Qwen3-235B-A22B", "disk", 6)]


def run(words, environment=None):
    """Shows a command and what it prints; returns its standard output."""
    print("$", " ".join([pathlib.Path(words[0]).name, *(w.replace(f"{ROOT}/", "") for w in words[1:])]), flush=True)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    if done.returncode:
        sys.exit(f"status {done.returncode}: {done.stderr}")
    print((done.stderr or done.stdout).rstrip() + "\n", flush=True)
    return done.stdout


def compare(machine, expected, measured, **more):
    """Says both speeds, tokens a second; the row that is kept of them."""
    print(f"expected {expected:.2f} tokens/s, measured {measured:.2f}: {100 * (measured / expected - 1):+.0f} %\n", flush=True)
    return {"machine": machine.name, "model": machine.model["name"], "share": machine.share,
            "expected_tokens_per_s": expected, "measured_tokens_per_s": measured, **more}


def table():
    """The evenings on a GPU that docs/results/data keeps."""
    kept = origins.load("first-evenings")
    lines = ["| card, RAM | for | on the card | llama-server, expected | measured | our tools, expected | measured |",
             "|---|---|--:|--:|--:|--:|--:|"]
    for server, tools in zip(kept["llama-server"], kept["tools"]):
        speeds = [row[f"{word}_tokens_per_s"] for row in (server, tools) for word in ("expected", "measured")]
        lines.append(f"| {server['machine'].replace(' card', '').replace(' of RAM', '')} | {server['model']} | "
                     f"{100 * server['share']:.0f} % | " + " | ".join(f"{speed:,.0f}" for speed in speeds) + " |")
    return "\n".join(lines)


def finish(rows, path):
    """Keeps the rows, and fails where a speed is far from what was expected."""
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n")
    far = [r["machine"] for r in rows if abs(r["measured_tokens_per_s"] / r["expected_tokens_per_s"] - 1) > WITHIN]
    if far:
        sys.exit(f"further than {100 * WITHIN:.0f} % from what was expected: {', '.join(far)}")


class Tools:
    """Our command line and Python on one model."""

    def __init__(self, folder, library, model, tokens, *flags):
        self.bin, self.library, self.model, self.tokens, self.flags = folder, library, str(model), tokens, flags
        info = json.loads(subprocess.run([folder / "moert-pack", "info", model, "--quiet", "--json", "-"],
                                         capture_output=True, text=True, check=True).stdout)
        self.layers, stored = info["model"]["moe_layers"], info["schemes"][0]["bytes"]
        self.token_bytes = stored * info["model"]["top_k"] / info["model"]["experts_per_layer"]
        self.experts_bytes = stored

    def doctor(self):
        run([str(self.bin / "moert-run"), "doctor", "--model", self.model, "--seconds", "0.2"])

    def score(self, *flags):
        return json.loads(run([str(self.bin / "moert-run"), "ppl", "--model", self.model, "--tokens", str(TEXT),
                               "--limit", str(self.tokens), "--window", str(self.tokens), "--step-tokens", "1",
                               "--json", "-", *self.flags, *flags]))

    def python(self, *flags):
        if self.library:
            run([sys.executable, "-m", "moert", "run", "generate", "--model", self.model, "--prompt", "The city",
                 "--max-tokens", "8", *flags],
                {"PYTHONPATH": str(ROOT / "capi/python"), "MOERT_LIBRARY": str(self.library), "MOERT_TOOLS": str(self.bin)})


def evening(tools, machine, folder):
    link = machine.rate * tools.token_bytes / one_card.sizes(machine.model)["token"]
    print(machine.title())
    tools.doctor()
    budget = ["--budget", f"{100 * machine.share:.0f}%", "--strategy", "on-demand"]
    own = tools.score("--budget", "100%", "--strategy", "resident")["tpot_ms"]["mean"]
    unpaced = tools.score(*budget)
    latency = max(0, unpaced["tpot_ms"]["mean"] - own) * (tools.tokens - 1) / unpaced["experts"]["loads"]
    profile = os.path.join(folder, "machine.json")
    pathlib.Path(profile).write_text(json.dumps({"link_bytes_per_s": 1e9 * link, "link_latency_ns": round(1e6 * latency),
                                                 "decode_layer_ns": 1e6 * own / tools.layers}))
    expected = tools.score(*budget, "--clock", "virtual", "--profile", profile)["tokens_per_s"]
    measured = tools.score(*budget, "--link-gbps", f"{link:.5f}")["tokens_per_s"]
    tools.python(*budget, "--link-gbps", f"{link:.5f}")
    return compare(machine, expected, measured, link_gbps=link, own_ms=own, load_ms=latency)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/dev/bin")
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    tools = Tools(arguments.bin, arguments.library, MODEL, arguments.tokens, "--threads", "1")
    with tempfile.TemporaryDirectory() as folder:
        rows = [evening(tools, machine, folder) for machine in MACHINES]
    finish(rows, arguments.json)


if __name__ == "__main__":
    main()
