#!/usr/bin/env python3
"""First evenings on three emulated machines: transcripts, and the speed that was expected beside the one that came.

    tests/research/first_evening.py --bin build/dev/bin [--library build/dev/capi/libmoert.so] [--json FILE]

The bundled model stands for a published one: its fast tier holds the same share of the experts, and its link is paced so
that the experts of a token take as long as they would there. A virtual clock, told the link's rate, the time of a layer
without transfers and that of a load beside its bytes, expects a speed; the same command on the wall clock measures it.
The model's routing is real. A CPU stands in for the card: products and kernels of a GPU, pinned copies, and a RAM between disk and card are not
emulated, and only a machine with a GPU can show them. Keep the machine idle: the CPU's own time counts.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import one_card

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/models/tiny-moe"
TEXT = ROOT / "tests/data/eval/humaneval.tokens.u16"
# Name, the card of one_card.CARDS, the model of the evening, what brings missing experts, its GB/s.
MACHINES = [("8 GB card, 32 GB of RAM", "8 GB", "Qwen3-30B-A3B", "PCIe 4", 25),
            ("24 GB card, 64 GB of RAM", "24 GB", "gpt-oss-120b", "PCIe 4", 25),
            ("24 GB card, 128 GB of RAM and a disk", "24 GB", "Qwen3-235B-A22B", "disk", 6)]
WITHIN = 0.2


def run(words, environment=None):
    """Shows a command and what it prints; returns its standard output."""
    print("$", " ".join([pathlib.Path(words[0]).name, *(w.replace(f"{ROOT}/", "") for w in words[1:])]), flush=True)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    if done.returncode:
        sys.exit(f"status {done.returncode}: {done.stderr}")
    print((done.stderr or done.stdout).rstrip() + "\n", flush=True)
    return done.stdout


class Evening:
    def __init__(self, arguments, folder):
        self.tool = str(arguments.bin / "moert-run")
        self.library, self.bin, self.folder, self.tokens = arguments.library, arguments.bin, folder, arguments.tokens
        info = json.loads(subprocess.run([arguments.bin / "moert-pack", "info", MODEL, "--quiet", "--json", "-"],
                                         capture_output=True, text=True, check=True).stdout)
        self.layers = info["model"]["moe_layers"]
        stored = info["schemes"][0]["bytes"]
        self.token_bytes = stored * info["model"]["top_k"] / info["model"]["experts_per_layer"]

    def score(self, *flags):
        return json.loads(run([self.tool, "ppl", "--model", str(MODEL), "--tokens", str(TEXT), "--limit", str(self.tokens),
                               "--window", str(self.tokens), "--step-tokens", "1", "--threads", "1", "--json", "-", *flags]))

    def machine(self, name, card, published, way, rate):
        model = next(m for m in one_card.models() if m["name"] == published)
        share = one_card.room(model, next(c for c in one_card.CARDS if c[0] == card))
        link = rate * self.token_bytes / one_card.sizes(model)["token"]
        print(f"## {name}: {published}, {100 * share:.0f} % of its experts on the card, the others by {way} at {rate} GB/s\n")
        run([self.tool, "doctor", "--model", str(MODEL), "--seconds", "0.2"])
        budget = ["--budget", f"{100 * share:.0f}%", "--strategy", "on-demand"]
        own = self.score("--budget", "100%", "--strategy", "resident")["tpot_ms"]["mean"]
        unpaced = self.score(*budget)
        latency = max(0, unpaced["tpot_ms"]["mean"] - own) * (self.tokens - 1) / unpaced["experts"]["loads"]
        profile = os.path.join(self.folder, "machine.json")
        pathlib.Path(profile).write_text(json.dumps({"link_bytes_per_s": 1e9 * link, "link_latency_ns": round(1e6 * latency),
                                                     "decode_layer_ns": 1e6 * own / self.layers}))
        expected = self.score(*budget, "--clock", "virtual", "--profile", profile)["tokens_per_s"]
        measured = self.score(*budget, "--link-gbps", f"{link:.5f}")["tokens_per_s"]
        if self.library:
            run([sys.executable, "-m", "moert", "run", "generate", "--model", str(MODEL), "--prompt", "The city",
                 "--max-tokens", "8", *budget, "--link-gbps", f"{link:.5f}"],
                {"PYTHONPATH": str(ROOT / "capi/python"), "MOERT_LIBRARY": str(self.library), "MOERT_TOOLS": str(self.bin)})
        print(f"expected {expected:.2f} tokens/s, measured {measured:.2f}: {100 * (measured / expected - 1):+.0f} %\n")
        return {"machine": name, "model": published, "share": share, "link_gbps": link, "expected_tokens_per_s": expected,
                "measured_tokens_per_s": measured, "own_ms": own, "load_ms": latency}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/dev/bin")
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        evening = Evening(arguments, folder)
        rows = [evening.machine(*machine) for machine in MACHINES]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    far = [r["machine"] for r in rows if abs(r["measured_tokens_per_s"] / r["expected_tokens_per_s"] - 1) > WITHIN]
    if far:
        sys.exit(f"further than {100 * WITHIN:.0f} % from what was expected: {', '.join(far)}")


if __name__ == "__main__":
    main()
