#!/usr/bin/env python3
"""Rivals of the grouped product on one GPU, in Qwen3-30B-A3B's shape: a line of JSON for each number of tokens.

    grouped_rivals.py FOLDER [--tokens 8,512,8192] [--programs triton_bf16,torch_bf16,marlin_w4] [--repeats 7]

FOLDER holds what is not ours. fused_moe_kernels.py: fused_moe_kernel of aphrodite-engine's fused_moe.py at b42eeec22,
under `import torch, triton, triton.language as tl`, and its two tuned configurations for E=128, N=768 on an H200,
each comma, equals sign and bracket of their names replaced by `_`. marlin_moe.so: its moe_wna16 Marlin kernel, bf16 by
u4b8 in groups of 128, behind `int moe_marlin_w4(...)`, called as below.

Times are microseconds of gate and up, and down, in a CUDA graph over six copies of a layer's weights, each with its own
uniform routing. Rivals' sorting, alignment and quantizing are outside. Marlin has the best of its five block sizes.
deepgemm_fp8, of the package deep_gemm, has its contiguous layout: an expert's rows are padded to 64 or 128, the better.
deepgemm_fp8_act has between its products what our launch of gate and up does as well: SiLU, and e4m3 with a scale a group.
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import sys

import torch
import triton
import triton.language as tl

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE, COPIES, GROUP = 128, 8, 2048, 768, 6, 128
MARLIN_BLOCKS, DEEPGEMM_BLOCKS = (8, 16, 32, 48, 64), (64, 128)
BF16 = torch.bfloat16


def empty(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="cuda")


def aligned(ids, block):
    """Slots sorted by expert and padded to blocks, the expert of each block, and the padded count."""
    slots = ids.flatten()
    order = torch.argsort(slots, stable=True)
    count = torch.bincount(slots, minlength=EXPERTS)
    padded = (count + block - 1) // block * block
    begin, first = torch.cumsum(padded, 0) - padded, torch.cumsum(count, 0) - count
    out = torch.full((int(padded.sum()),), slots.numel(), dtype=torch.int32, device="cuda")
    out[torch.arange(slots.numel(), device="cuda") - first[slots[order]] + begin[slots[order]]] = order.to(torch.int32)
    experts = torch.repeat_interleave(torch.arange(EXPERTS, device="cuda"), padded // block).to(torch.int32)
    return out, experts, torch.tensor([out.numel()], dtype=torch.int32, device="cuda")


def timed(product, repeats):
    """Microseconds of `product(copy)`, the mean over the copies in a graph: median and extremes."""
    for copy in range(COPIES):
        product(copy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for copy in range(COPIES):
            product(copy)
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(3):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / COPIES / 3)
    return {"median": round(statistics.median(times), 2), "min": round(min(times), 2), "max": round(max(times), 2)}


class Rows:
    """Hidden states, routing for each copy of the weights, and what the products write."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.ids = [torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K, dim=1).indices for _ in range(COPIES)]
        self.weights = torch.rand(tokens, TOP_K, device="cuda")
        self.x = torch.randn(tokens, HIDDEN, device="cuda", dtype=BF16)
        self.h = torch.randn(tokens * TOP_K, INTERMEDIATE, device="cuda", dtype=BF16)
        self.gate_up, self.y = empty(tokens * TOP_K, 2 * INTERMEDIATE), empty(tokens * TOP_K, HIDDEN)


def nearest(configs, tokens):
    return configs[min(configs, key=lambda key: abs(int(key) - tokens))]


def triton_call(kernel, a, b, c, weights, blocks, top_k, config, scales=None):
    """As invoke_fused_moe_triton_kernel calls it; `scales`: of fp8 in blocks, of a and of b."""
    config = dict(config, SPLIT_K=1)
    block_k = min(config.pop("BLOCK_SIZE_K"), GROUP) if scales else config.pop("BLOCK_SIZE_K")
    slots, experts, past = blocks
    rows = slots.size(0)
    if a.size(0) < config["BLOCK_SIZE_M"]:
        rows = min(rows, a.size(0) * top_k * config["BLOCK_SIZE_M"])
    grid = (triton.cdiv(rows, config["BLOCK_SIZE_M"]) * triton.cdiv(b.size(1), config["BLOCK_SIZE_N"]),)
    of_a, of_b = scales or (None, None)
    strides = (of_a.stride(0), of_a.stride(1), of_b.stride(0), of_b.stride(2), of_b.stride(1)) if scales else (0,) * 5
    kernel[grid](a, b, c, None, of_a, of_b, weights, slots, experts, past, b.size(1), b.size(2), rows, a.size(0) * top_k,
                 a.stride(0), a.stride(1), b.stride(0), b.stride(2), b.stride(1), c.stride(0), c.stride(1), *strides, 0, 0,
                 GROUP if scales else 0, GROUP if scales else 0, MUL_ROUTED_WEIGHT=top_k == 1, top_k=top_k,
                 compute_type=tl.bfloat16, use_fp8_w8a8=bool(scales), use_int8_w8a8=False, use_int8_w8a16=False,
                 per_channel_quant=False, naive_block_assignment=False, HAS_BIAS=False, BLOCK_SIZE_K=block_k, **config)


def triton_time(kernel, configs, rows, first, second, repeats, fp8=False):
    config = nearest(configs, rows.tokens)
    blocks = [aligned(ids, config["BLOCK_SIZE_M"]) for ids in rows.ids]
    x, h, of_x, of_h = rows.x, rows.h, None, None
    if fp8:
        ones = lambda *shape: torch.ones(shape, device="cuda")
        x, h = x.to(torch.float8_e4m3fn), h.to(torch.float8_e4m3fn)
        of_x = (ones(x.size(0), HIDDEN // GROUP), ones(EXPERTS, 2 * INTERMEDIATE // GROUP, HIDDEN // GROUP))
        of_h = (ones(h.size(0), INTERMEDIATE // GROUP), ones(EXPERTS, HIDDEN // GROUP, INTERMEDIATE // GROUP))

    def product(copy):
        triton_call(kernel, x, first[copy], rows.gate_up, rows.weights, blocks[copy], TOP_K, config, of_x)
        triton_call(kernel, h, second[copy], rows.y, rows.weights, blocks[copy], 1, config, of_h)
    return timed(product, repeats)


def torch_time(rows, first, second, repeats):
    order = [torch.argsort(ids.flatten(), stable=True) for ids in rows.ids]
    ends = [torch.cumsum(torch.bincount(ids.flatten(), minlength=EXPERTS), 0).to(torch.int32) for ids in rows.ids]
    x = [rows.x[o // TOP_K].contiguous() for o in order]

    def product(copy):
        torch._grouped_mm(x[copy], first[copy].transpose(1, 2), offs=ends[copy])
        torch._grouped_mm(rows.h, second[copy].transpose(1, 2), offs=ends[copy])
    return timed(product, repeats)


@triton.jit
def quantized_silu(gate_up, h, scales, rows, width: tl.constexpr, group: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.program_id(1) * group + tl.arange(0, group)
    at = gate_up + row[:, None].to(tl.int64) * (2 * width) + column[None, :]
    there = row[:, None] < rows
    gate = tl.load(at, there, 0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * tl.load(at + width, there, 0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 1), 1e-10) / 448
    tl.store(h + row[:, None].to(tl.int64) * width + column[None, :], (value / scale[:, None]).to(tl.float8e4nv), there)
    tl.store(scales + tl.program_id(1) * rows + row, scale, row < rows)


def deepgemm_time(rows, first, second, repeats, act=False):
    return min((deepgemm_aligned(block, rows, first, second, repeats, act) for block in DEEPGEMM_BLOCKS), key=lambda t: t["median"])


def deepgemm_aligned(block, rows, first, second, repeats, act):
    import deep_gemm
    deep_gemm.set_mk_alignment_for_contiguous_layout(block)
    calls = []
    for ids in rows.ids:
        slots, experts, _ = aligned(ids, block)
        padded = slots == ids.numel()
        experts = experts.repeat_interleave(block).masked_fill_(padded, -1)
        x, h = (torch.randn(slots.numel(), width, device="cuda").to(torch.float8_e4m3fn) for width in (HIDDEN, INTERMEDIATE))
        of_rows = [torch.ones(width // GROUP, slots.numel(), device="cuda").t() for width in (HIDDEN, INTERMEDIATE)]
        calls.append((experts, (x, of_rows[0]), (h, of_rows[1]), empty(slots.numel(), 2 * INTERMEDIATE), empty(slots.numel(), HIDDEN)))
    of_weights = [torch.ones(EXPERTS, n // GROUP, k // GROUP, device="cuda")
                  for n, k in ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))]

    def product(copy):
        experts, x, h, gate_up, y = calls[copy]
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(x, (first[copy], of_weights[0]), gate_up, experts)
        if act:
            count = gate_up.size(0)
            quantized_silu[(triton.cdiv(count, 16), INTERMEDIATE // GROUP)](gate_up, *h, count, INTERMEDIATE, GROUP, 16)
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(h, (second[copy], of_weights[1]), y, experts)
    return timed(product, repeats)


class Marlin:
    def __init__(self, library):
        self.call = ctypes.CDLL(str(library)).moe_marlin_w4
        packed = lambda n, k: torch.randint(-2**31, 2**31 - 1, (EXPERTS, k // 16, n * 2), dtype=torch.int32, device="cuda")
        self.first = [packed(2 * INTERMEDIATE, HIDDEN) for _ in range(COPIES)]
        self.second = [packed(HIDDEN, INTERMEDIATE) for _ in range(COPIES)]
        self.scales = [torch.full((EXPERTS, k // GROUP, n), 0.01, dtype=BF16, device="cuda")
                       for n, k in ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))]
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.locks = torch.zeros(self.processors * 4, dtype=torch.int32, device="cuda")
        self.sums = empty(self.processors * 4 * 64 * 256, dtype=torch.float32)

    def product(self, a, b, c, scales, rows, blocks, block, top_k):
        values = [t.data_ptr() for t in (a, b, c, self.sums, scales, *blocks, rows.weights, self.locks)]
        status = self.call(*map(ctypes.c_void_p, values), block, EXPERTS, top_k, int(top_k == 1), a.size(0), c.size(1),
                           a.size(1), self.processors, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise RuntimeError(f"marlin: CUDA error {status}")

    def best(self, rows, repeats):
        return min((self.time(rows, block, repeats) for block in MARLIN_BLOCKS), key=lambda time: time["median"])

    def time(self, rows, block, repeats):
        blocks = [aligned(ids, block) for ids in rows.ids]

        def product(copy):
            self.product(rows.x, self.first[copy], rows.gate_up, self.scales[0], rows, blocks[copy], block, TOP_K)
            self.product(rows.h, self.second[copy], rows.y, self.scales[1], rows, blocks[copy], block, 1)
        return timed(product, repeats)


def programs(options):
    """{name: times of rows}"""
    sys.path.insert(0, str(options.folder))
    from fused_moe_kernels import fused_moe_kernel
    tuned = "E_128_N_768_device_name_NVIDIA_H200"
    configs = [json.loads((options.folder / f"{tuned}{name}.json").read_text())
               for name in ("", "_dtype_fp8_w8a8_block_shape__128_128_")]
    weights = [[torch.randn(EXPERTS, n, k, device="cuda", dtype=BF16) * 0.02 for _ in range(COPIES)]
               for n, k in ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))]
    weights8 = [[w.to(torch.float8_e4m3fn) for w in of] for of in weights]
    marlin = Marlin(options.folder / "marlin_moe.so") if "marlin_w4" in options.programs else None
    n = options.repeats
    return {"triton_bf16": lambda rows: triton_time(fused_moe_kernel, configs[0], rows, *weights, n),
            "triton_fp8": lambda rows: triton_time(fused_moe_kernel, configs[1], rows, *weights8, n, fp8=True),
            "torch_bf16": lambda rows: torch_time(rows, *weights, n),
            "deepgemm_fp8": lambda rows: deepgemm_time(rows, *weights8, n),
            "deepgemm_fp8_act": lambda rows: deepgemm_time(rows, *weights8, n, act=True),
            "marlin_w4": lambda rows: marlin.best(rows, n)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", default="8,512,8192")
    parser.add_argument("--programs", default="triton_bf16,torch_bf16,marlin_w4")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    of = programs(options)
    for tokens in map(int, options.tokens.split(",")):
        rows = Rows(tokens)
        print(json.dumps({"T": tokens, **{name: of[name](rows) for name in options.programs.split(",")}}), flush=True)


if __name__ == "__main__":
    main()
