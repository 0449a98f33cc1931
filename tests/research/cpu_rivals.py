#!/usr/bin/env python3
"""An expert layer on the CPU, ours beside kt-kernel's and ggml's in turns, and our kernel sets: docs/results/cpu.md.

    cpu_rivals.py --bench build/release/bin/moert-bench --ggml ggml_moe --out FILE [--threads 16] [--tokens 1,8,32,512]
    cpu_rivals.py --take FILE    puts it into docs/results/data

Needs the packages kt_kernel and torch, and ggml_moe of ggml_moe.c. Qwen3-30B-A3B's shape, uniform routing over 128
experts, 8 a token. A layer is gate, up, SiLU, down and, but for ggml, the weighted sum. All use their best kernels for the
processor, ggml the best of its kinds of buffers, and weights that take turns, so that they are not in the caches.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import digest
import experiment
import report
import side_by_side

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 128, 8, 2048, 768
# A scheme of ours, kt-kernel's method and ggml's type: the same weights' bits, or the nearest that they have.
ALIKE = (("bf16", "BF16", "bf16"), ("w8a8", "AMXINT8", "q8_0"), ("w4a8_g128", "AMXINT4", "q4_0"),
         ("w4a16_g32", "RAWINT4", None), ("mxfp4", "MXFP4", "mxfp4"), ("fp8_b128", "FP8", None))
FORMATS = ("w4a16_g128", "mxfp4", "nvfp4", "w4a16_g128_zp", "w4a16_g32_f16", "fp8_b128")
STORED = report.DATA / "cpu-rivals.json"
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
    """One of kt-kernel's."""

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


def theirs(method, threads, tokens, seconds=0.3, repeats=3):
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


def gemm(options, *flags):
    command = [options.bench, "gemm", "--backend", "cpu", "--hidden", str(HIDDEN), "--intermediate", str(INTERMEDIATE),
               "--threads", str(options.threads), "--repeats", "5", *flags, "--quiet", "--json", "-"]
    return json.loads(side_by_side.output(command))["results"]


def ours(options):
    """{"SCHEME TOKENS": the least, the median and the greatest microseconds of a layer}"""
    flop, found = 6 * HIDDEN * INTERMEDIATE * TOP_K, {}
    for r in gemm(options, "--experts", str(EXPERTS), "--used", str(TOP_K), "--batch", options.tokens, "--bytes", "1GiB",
                  "--kernels", "auto", "--schemes", ",".join(scheme for scheme, *_ in ALIKE)):
        median, times = 1e-3 * flop * r["tokens"] / r["gflops"], r["ms_per_expert"]
        found[f"{r['scheme']} {r['tokens']}"] = [median * times[k] / times["median"] for k in ("min", "median", "max")]
    return found


def of_ggml(options):
    """{"TYPE TOKENS": [microseconds of a layer in the best of its buffers]}"""
    found = {}
    for line in side_by_side.output([options.ggml, str(options.threads), options.tokens]).splitlines():
        cell = json.loads(line)
        name = f"{cell['type']} {cell['tokens']}"
        found[name] = min([cell["us"]], found.get(name, [cell["us"]]))
    return found


def of_kt_kernel(options):
    """{"METHOD TOKENS": microseconds of a layer with the number of threads that is best there}; its own threads spin beside
    the caller's, so that one a CPU may be too many."""
    found = {}
    for _, method, _ in ALIKE:
        for threads in (options.threads, options.threads - 1, options.threads - 2):
            words = [sys.executable, __file__, "--method", method, "--threads", str(threads), "--tokens", options.tokens]
            told = side_by_side.figures(side_by_side.output(words))
            found.update(variant=told["variant"], version=told["version"])
            for tokens, us in told["us"].items():
                name = f"{method} {tokens}"
                found[name] = min(us, found.get(name, us), key=statistics.median)
    return found


def measure(options):
    data = {"commit": side_by_side.commit(), "machine": {"cpu": side_by_side.cpu(), "threads": options.threads}, "rounds": []}
    data["kernels"] = gemm(options, "--kernels", "all", "--tokens", "1,8,32", "--bytes", "256MiB", "--schemes", ",".join(FORMATS))
    for _ in range(options.rounds):
        data["rounds"].append({"libmoert": ours(options), "kt-kernel": of_kt_kernel(options), "ggml": of_ggml(options)})
        options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(data["rounds"][-1]), flush=True)


# Tables

def samples(program, name):
    return [us for r in digest.data(STORED.stem)["rounds"] for us in r[program].get(name, [])]


def sizes():
    return [name.split()[1] for name in digest.data(STORED.stem)["rounds"][0]["libmoert"] if name.startswith("bf16 ")]


def lost():
    found = []
    for mine, *others in ALIKE:
        for tokens in sizes() if samples("libmoert", f"{mine} 1") else ():
            us = statistics.median(samples("libmoert", f"{mine} {tokens}"))
            for program, name in zip(("kt-kernel", "ggml"), others):
                theirs = samples(program, f"{name} {tokens}")
                if theirs and statistics.median(theirs) < us:
                    found.append(f"`{mine}` at {tokens} to {program} ({statistics.median(theirs) / us:.2f} of the time)")
    return found


def table():
    """Medians of a layer's microseconds: a row a format and program, a column a number of tokens."""
    rows = []
    for names in (names for names in ALIKE if samples("libmoert", f"{names[0]} 1")):
        for program, name in zip(("libmoert", "kt-kernel", "ggml"), names):
            if name and samples(program, f"{name} 1"):
                rows.append([program, f"`{name}`", *(side_by_side.figure(statistics.median(samples(program, f"{name} {t}"))) for t in sizes())])
    return experiment.table(["us a layer", "format", *sizes()], rows) + f"\n\nLost: {'; '.join(lost()) or 'none'}."


def formats():
    """GB/s of weights and scales, and their share of what a plain read gives, by tokens an expert."""
    of = {(r["kernels"], r["scheme"], r["tokens"]): r for r in digest.data(STORED.stem)["kernels"]}
    sets = [name for name in dict.fromkeys(kernels for kernels, *_ in of) if name != "avx512"]  # its kernels are AVX2's
    cell = lambda r: side_by_side.figure(r["weights_gbps"]["median"])
    share = lambda r: f"{100 * r['of_read']['median']:.0f} %"
    return experiment.table(["set", "format", "1", "8", "32", "share at 1"], [
        [f"`{kernels}`", f"`{scheme}`", *(cell(of[kernels, scheme, tokens]) for tokens in (1, 8, 32)), share(of[kernels, scheme, 1])]
        for kernels in sets for scheme in FORMATS if (kernels, scheme, 1) in of])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench")
    parser.add_argument("--ggml")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--tokens", default="1,8,32,512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", choices=CLASSES, help="measures kt-kernel alone")
    parser.add_argument("--take", type=pathlib.Path)
    options = parser.parse_args()
    if options.take:
        STORED.write_text(options.take.read_text(encoding="utf-8"), encoding="utf-8")
    elif options.method:
        print(json.dumps(theirs(options.method, options.threads, list(map(int, options.tokens.split(","))))))
    else:
        measure(options)


if __name__ == "__main__":
    main()
