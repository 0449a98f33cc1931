#!/usr/bin/env python3
"""Perplexity of every fixture of tests/data/architectures by every way of opening it, beside that of
the reference's logits: the table of docs/reference/checkpoints.md.

    tests/research/opening_ways.py build/dev/bin    runs moert-run and stores what it prints
"""
import argparse
import json
import math
import pathlib
import struct
import subprocess
import tempfile

import experiment
import report

NAME = "opening-ways"
FIXTURES = report.ROOT / "tests" / "data" / "architectures"
EIGHT = "w8a16_g128"
WAYS = ["transformers", "in place", "25 %", "one token a step", "--pack", "cached", "--as bf16", "a pack, bf16",
        f"--as {EIGHT}", f"a pack, {EIGHT}"]


def tensors(path):
    """{name: flat list} of the f32, i32 and i64 tensors of a safetensors file."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    found = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and t["dtype"] in ("F32", "I32", "I64"):
            begin, end = (8 + size + at for at in t["data_offsets"])
            code = {"F32": "f", "I32": "i", "I64": "q"}[t["dtype"]]
            found[name] = t["shape"], struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}",
                                                    data[begin:end])
    return found


def reference(expected):
    """Perplexity of the stored logits: of tokens 1 on, given those before."""
    (sequences, length), tokens = expected["short.tokens"]
    shape, logits = expected["short.logits"]
    vocab, nll = shape[-1], 0.0
    for s in range(sequences):
        for t in range(1, length):
            row = logits[(s * length + t - 1) * vocab:(s * length + t) * vocab]
            top = max(row)
            nll += top + math.log(sum(math.exp(x - top) for x in row)) - row[tokens[s * length + t]]
    return math.exp(nll / (sequences * (length - 1)))


def measure(bin_dir, name):
    model = FIXTURES / name
    expected = tensors(model / "expected.safetensors")
    (_, length), tokens = expected["short.tokens"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "tokens.u16").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        for scheme in ("bf16", EIGHT):
            subprocess.run([bin_dir / "moert-pack", "quantize", "--model", model, "--out", folder / scheme,
                            "--schemes", scheme, "--quiet"], check=True, stdout=subprocess.DEVNULL)

        def run(*flags, cache="empty"):
            command = [bin_dir / "moert-run", "ppl", "--model", model, "--tokens", folder / "tokens.u16",
                       "--window", str(length), "--dtype", "f32", "--backend", "cpu", "--quiet", "--json", "-",
                       "--cache", folder / cache, *flags]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            return json.loads(done.stdout)["ppl"]
        return [reference(expected), run(), run("--budget", "25%"), run("--step-tokens", "1"),
                run("--pack", cache="cache"), run(cache="cache"), run("--as", "bf16", cache="cache"),
                run("--experts", folder / "bf16"), run("--as", EIGHT, cache="cache"),
                run("--experts", folder / EIGHT)]


def table():
    rows = json.loads((report.DATA / f"{NAME}.json").read_text(encoding="utf-8"))["rows"]
    eights = [i for i, way in enumerate(WAYS) if EIGHT in way]
    fulls = [i for i in range(1, len(WAYS)) if i not in eights]

    def worst(which):
        """Percent, and where."""
        return max((max(abs(row[i] / row[0] - 1) for i in which) * 100, name) for name, row in rows.items())
    cells = ["{:.4f}, `{}`".format(*worst(which)) for which in (fulls, eights)]
    return experiment.table(["largest difference of", f"{len(fulls)} ways in bf16", f"{len(eights)} in {EIGHT}"],
                            [[f"{len(rows)} fixtures, %", *cells]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", report.ROOT, "rev-parse", "--short=8", "HEAD"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    names = sorted(p.parent.name for p in FIXTURES.glob("*/config.json"))
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(measure(args.bin.resolve(), name))}" for name in names)
    about = "tests/research/opening_ways.py build/dev/bin: perplexity, CPU, fp32 activations"
    (report.DATA / f"{NAME}.json").write_text(
        f'{{\n "about": {json.dumps(about)},\n "commit": "{commit}",\n "ways": {json.dumps(WAYS)},\n "rows": {{\n{rows}\n }}\n}}\n',
        encoding="utf-8")


if __name__ == "__main__":
    main()
