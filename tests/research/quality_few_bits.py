#!/usr/bin/env python3
"""Below 2.5 bits: ternary codes, which no kernel has, and 2 bits a channel, beside what there is.

    quality_few_bits.py --bin build/release/bin --eval DIR [--work DIR] tiny-moe=DIR small-moe=DIR

A ternary expert is emulated by a checkpoint whose weights are -s, 0 or s of each group, s the scale of the least
squared error, rounded to bf16: products are then what a kernel would compute. 2 bits a channel are a pack. The
first windows of each text; docs/results/data/quality-few-bits.json. What it is held against is stored already.
"""
import argparse
import pathlib
import shutil

import quality_lib as lib
import report

STORED = report.DATA / "quality-few-bits.json"
GROUPS = (64, 128)
CHANNEL = "w2a16_g-1_asym"
WINDOW, TOKENS = 512, 4096


def ternary(weights, group):
    """[out, in], each group of inputs by the scale of the least squared error: of the k largest magnitudes of a
    group their mean, for the k of the largest (sum of k)^2 / k."""
    import torch
    x = weights.float().unflatten(-1, (-1, min(group, weights.shape[-1])))
    largest = x.abs().sort(-1, descending=True).values
    sums, count = largest.cumsum(-1), torch.arange(1, x.shape[-1] + 1)
    k = (sums**2 / count).argmax(-1, keepdim=True)
    scale = (sums / count).gather(-1, k).bfloat16().float()
    kept = x.abs() >= largest.gather(-1, k)
    return (x.sign() * kept * scale).flatten(-2).bfloat16()


def emulate(model, group, out):
    """A copy of the checkpoint with ternary routed experts."""
    import safetensors.torch as files
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(model, out, copy_function=shutil.copyfile)
    for path in out.glob("*.safetensors"):
        tensors = files.load_file(path)
        for name, tensor in tensors.items():
            if ".mlp.experts." in name:
                tensors[name] = ternary(tensor, group)
        path.chmod(0o644)
        files.save_file(tensors, path, metadata={"format": "pt"})
    return out


def bits(columns, codes, scale, group):
    """Stored bits a weight of matrices of so many columns, their scales and zeros included."""
    return lib.mean([codes + scale / min(group or c, c) for c in columns])


def measure(args):
    tools, data = lib.Tools(args.bin, args.work), lib.load(STORED)
    for entry in args.models:
        name, _, path = entry.partition("=")
        path = pathlib.Path(path)
        columns = {"tiny-moe": (128, 128, 64), "small-moe": (256, 256, 128)}[name]

        def score(key, stored_bits, model, *flags):
            nll = {d: lib.rounded(tools.window_nll(model, args.eval / f"{d}.tokens.u16", "--window", WINDOW, "--limit", TOKENS,
                                                   "--threads", 1, *flags)) for d in lib.DOMAINS}
            data[f"{name} {key}"] = {"stored_bits": stored_bits, "nll": nll}
            lib.save(STORED, data)
            print(name, key, {d: round(lib.perplexity(v), 3) for d, v in nll.items()}, flush=True)

        for group in GROUPS:
            if f"{name} ternary g{group}" not in data:
                score(f"ternary g{group}", bits(columns, 1.6, 16, group), emulate(path, group, args.work / f"{name}-t{group}"))
        if f"{name} {CHANNEL}" not in data:
            pack = args.work / f"{name}-channel"
            if not pack.exists():
                tools.run("moert-pack", "quantize", "--model", path, "--schemes", CHANNEL, "--method", "hqq", "--threads", 1,
                          "--out", pack, "--quiet")
            score(CHANNEL, bits(columns, 2, 32, None), path, "--experts", pack)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=report.ROOT / "build" / "release" / "bin")
    parser.add_argument("--eval", type=pathlib.Path, default=report.ROOT / "tests" / "data" / "eval")
    parser.add_argument("--work", type=pathlib.Path, default=report.ROOT / "build" / "few-bits")
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
