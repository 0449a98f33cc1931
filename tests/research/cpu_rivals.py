#!/usr/bin/env python3
"""CPU products of kt-kernel and ours in turns, in Qwen3-30B-A3B's shape.

    cpu_rivals.py --bench build/release/bin/moert-bench --out FILE [--threads 16] [--tokens 1,8,32] [--rounds 3]

Needs the packages kt_kernel and torch. kt-kernel runs a whole layer: gate, up, SiLU, down and the weighted sum, of layers
with random weights that take turns, so that weights are not in the caches; ours is the whole layer of `moert-bench gemm`,
whose weights take turns too. Both have uniform routing over 128 experts, 8 a token, and the processor's best kernels.
A time is the mean over a repetition's calls; a round has three repetitions of each program.
"""
import argparse
import json
import pathlib
import sys
import time

import report
import side_by_side

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 128, 8, 2048, 768
# Ours beside kt-kernel's method: the same weights' bits, or the nearest that it has.
PAIRS = (("bf16", "BF16"), ("w8a8", "AMXINT8"), ("w4a8_g128", "AMXINT4"), ("w4a16_g32", "RAWINT4"), ("mxfp4", "MXFP4"),
         ("fp8_b128", "FP8"))
CLASSES = {"BF16": ("AMXBF16_MOE", "AVX2BF16_MOE"), "AMXINT8": ("AMXInt8_MOE",), "AMXINT4": ("AMXInt4_MOE",),
           "RAWINT4": ("AMXInt4_KGroup_MOE", "AVX2RawInt4_MOE"), "MXFP4": ("AMXFP4_KGroup_MOE", "AVX2MXFP4_MOE"),
           "FP8": ("AMXFP8_MOE", "AVX2FP8_MOE")}  # the first that the processor's variant has, as kt-kernel chooses
GROUPS = {"RAWINT4": (4, 32), "MXFP4": (4, 32), "FP8": (8, 128)}  # bits, group
LEAST_BYTES = 1 << 30  # of weights that take turns, in bf16


def matrices(torch, method):
    """(weights, scales) of gate, up, down: a tensor an expert, as kt-kernel's loaders hand them over."""
    found = []
    for rows, k in ((INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)):
        if method not in GROUPS:
            weights, scales = torch.randn(EXPERTS, rows, k).mul_(0.02).to(torch.bfloat16), None
        else:
            bits, group = GROUPS[method]
            weights = torch.randint(0, 120, (EXPERTS, rows, k * bits // 8), dtype=torch.uint8)
            scales = (torch.full((EXPERTS, rows // group, k // group), 0.01) if method == "FP8" else
                      torch.full((EXPERTS, rows, k // group), 2.0**-7, dtype=torch.bfloat16))
        found.append((weights, scales))
    return found


class Layer:
    """A layer of kt-kernel's."""

    def __init__(self, kt, torch, pool, method, index):
        self.pool = pool
        self.mask, self.order = torch.zeros(EXPERTS, dtype=torch.bool), torch.arange(EXPERTS)
        self.kept = matrices(torch, method)
        config = kt.moe.MOEConfig(EXPERTS, TOP_K, HIDDEN, INTERMEDIATE, self.mask.data_ptr())
        config.layer_idx, config.pool, config.max_len = index, pool.backend_, 512
        for name, (weights, scales) in zip(("gate", "up", "down"), self.kept):
            if method not in ("AMXINT8", "AMXINT4"):
                setattr(config, f"{name}_projs", [[w.data_ptr() for w in weights]])
                setattr(config, f"{name}_scales", [[0 if scales is None else scales[e].data_ptr() for e in range(EXPERTS)]])
            else:
                setattr(config, f"{name}_proj", weights.data_ptr())
        if method in GROUPS:
            config.quant_config.bits, config.quant_config.group_size = GROUPS[method]
            config.quant_config.zero_point = False
        self.moe = next(getattr(kt.moe, name) for name in CLASSES[method] if hasattr(kt.moe, name))(config)
        self.run(self.moe.load_weights_task(self.order.data_ptr()))
        self.kept = []  # it has its own now

    def run(self, task):
        self.pool.submit(task)
        self.pool.sync()

    def forward(self, rows):
        self.run(self.moe.forward_task(*(t.data_ptr() if t is not TOP_K else t for t in rows), False))


def inputs(torch, tokens):
    """What forward_task takes: count, k, ids, weights, hidden states, output."""
    ids = torch.rand(tokens, EXPERTS).topk(TOP_K, dim=1).indices.contiguous()
    return (torch.tensor([tokens], dtype=torch.int32), TOP_K, ids, torch.full((tokens, TOP_K), 1 / TOP_K),
            torch.randn(tokens, HIDDEN).to(torch.bfloat16), torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16))


def theirs(method, threads, tokens, seconds=0.5, repeats=3):
    """{tokens: [microseconds of a layer]}"""
    import kt_kernel
    import torch
    kt = kt_kernel.kt_kernel_ext
    workers = kt.WorkerPoolConfig()
    workers.subpool_count, workers.subpool_numa_map, workers.subpool_thread_count = 1, [0], [threads]
    pool = kt.CPUInfer(workers)
    count = max(2, -(-LEAST_BYTES // (EXPERTS * 3 * HIDDEN * INTERMEDIATE * 2)))
    layers, found = [Layer(kt, torch, pool, method, i) for i in range(count)], {}
    for t in tokens:
        calls = [inputs(torch, t) for _ in range(32)]
        for i, call in enumerate(calls):
            layers[i % count].forward(call)
        found[t] = []
        for _ in range(repeats):
            begin, done = time.perf_counter(), 0
            while time.perf_counter() - begin < seconds:
                layers[done % count].forward(calls[done % len(calls)])
                done += 1
            found[t].append(1e6 * (time.perf_counter() - begin) / done)
    return {"variant": kt_kernel.__cpu_variant__, "version": kt_kernel.__version__, "us": found}


def ours(options):
    command = [options.bench, "gemm", "--backend", "cpu", "--shape", "qwen3-30b", "--zipf", "0", "--threads", str(options.threads),
               "--batch", options.tokens, "--schemes", ",".join(scheme for scheme, _ in PAIRS), "--repeats", "7", "--quiet",
               "--json", "-"]
    result = json.loads(side_by_side.output(command))
    return {"commit": result["commit"], "command": report.command_of(result["command"]),
            "us": {f"{r['scheme']} {r['tokens']}": r["layer_us"]["median"] for r in result["results"]}}


def measure(options):
    data = {"machine": {"cpu": side_by_side.cpu(), "threads": options.threads}, "rounds": []}
    for _ in range(options.rounds):
        kept = {"ours": ours(options), "theirs": {}}
        for _, method in PAIRS:
            words = [sys.executable, __file__, "--method", method, "--threads", str(options.threads), "--tokens", options.tokens]
            try:
                kept["theirs"][method] = side_by_side.figures(side_by_side.output(words))
            except RuntimeError as error:
                kept["theirs"][method] = {"failed": str(error)[-300:]}
        data["rounds"].append(kept)
        options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(kept), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--tokens", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", choices=CLASSES, help="measures kt-kernel alone")
    options = parser.parse_args()
    if options.method:
        print(json.dumps(theirs(options.method, options.threads, list(map(int, options.tokens.split(","))))))
    else:
        measure(options)


if __name__ == "__main__":
    main()
