#!/usr/bin/env python3
"""Tiny checkpoints in every form of quantized weights that is read, and what their weights are:
make_fixtures.py [OUT_DIR]

Codes, scales and zeros are drawn at random, packed as the publishers' libraries pack them, and then
unpacked again from the packed tensors with their formulas, which are quoted. Expected values are
fp32 at random places of every matrix. Needs numpy. Writes NAME/{config.json,model.safetensors,
expected.safetensors}."""
import json
import os
import struct
import sys

import numpy as np

HIDDEN, WIDTH, EXPERTS = 256, 32, 2
SAMPLES = 400  # of each matrix

CONFIG = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 32,
    "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "num_local_experts": EXPERTS, "num_experts_per_tok": 1,
    "moe_intermediate_size": WIDTH, "norm_topk_prob": True,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}
V4 = {
    "model_type": "deepseek_v4", "vocab_size": 32, "hidden_size": HIDDEN, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 8,
    "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16, "sliding_window": 8,
    "compress_ratios": [0], "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "n_routed_experts": EXPERTS, "n_shared_experts": 0, "num_experts_per_tok": 1,
    "num_hash_layers": 0, "moe_intermediate_size": WIDTH, "swiglu_limit": 10.0,
    "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "tie_word_embeddings": False,
    "expert_dtype": "fp4"}
TYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int32": "I32"}


class Bf16:
    def __init__(self, bits):
        self.bits = bits.astype(np.uint16)

    def wide(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


class F8:
    def __init__(self, bits):
        self.bits = bits.astype(np.uint8)

    def wide(self):
        """e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits."""
        s, e, m = self.bits >> 7, (self.bits >> 3) & 15, self.bits & 7
        value = np.where(e == 0, m / 8.0 * 2.0 ** -6, (1 + m / 8.0) * 2.0 ** (e.astype(int) - 7))
        return np.where(s == 1, -value, value).astype(np.float32)


class E8m0:
    """Powers of two: 2^(bits - 127)."""

    def __init__(self, bits):
        self.bits = bits.astype(np.uint8)


def write(path, tensors):
    header, data = {}, b""
    for name, t in tensors.items():
        kinds = {Bf16: "BF16", F8: "F8_E4M3", E8m0: "F8_E8M0"}
        array = t.bits if type(t) in kinds else t
        kind = kinds.get(type(t)) or TYPES[str(array.dtype)]
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def scales_of(rng, shape, kind):
    values = (rng.uniform(0.5, 2.0, shape) * 2.0 ** rng.integers(-9, -5, shape)).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16)
    if kind == "bf16":
        return Bf16(values.view(np.uint32) >> 16)
    return values


def wide(t):
    return t.wide() if isinstance(t, (Bf16, F8)) else t.astype(np.float32)


def pack32(nibbles, axis):
    """Eight nibbles an int32 along `axis`, the first in the low bits."""
    n = np.moveaxis(nibbles.astype(np.uint32), axis, -1)
    n = n.reshape(*n.shape[:-1], -1, 8)
    words = np.zeros(n.shape[:-1], np.uint32)
    for i in range(8):
        words |= n[..., i] << np.uint32(4 * i)
    return np.moveaxis(words, -1, axis).view(np.int32)


def unpack32(words, axis):
    w = np.moveaxis(words.view(np.uint32), axis, -1)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    n = (w[..., None] >> shifts) & np.uint32(15)
    return np.moveaxis(n.reshape(*n.shape[:-2], -1), -1, axis)


def gptq(rng, rows, k, group, symmetric, scale="f16", v2=False):
    """AutoGPTQ's QuantLinear: weight = scales[g_idx] * (unpack(qweight) - (unpack(qzeros) + 1)),
    all of them transposed: [in, out]."""
    groups = -(-k // group)
    zeros = np.full((groups, rows), 8) if symmetric else rng.integers(1, 16, (groups, rows))
    t = {"qweight": pack32(rng.integers(0, 16, (k, rows)), 0),
         "qzeros": pack32(zeros if v2 else zeros - 1, 1),
         "scales": scales_of(rng, (groups, rows), scale),
         "g_idx": (np.arange(k) // group).astype(np.int32)}
    z = unpack32(t["qzeros"], 1).astype(np.float32) + (0 if v2 else 1)
    q = unpack32(t["qweight"], 0).astype(np.float32)
    return t, (wide(t["scales"])[t["g_idx"]] * (q - z[t["g_idx"]])).T


def awq(rng, rows, k, group):
    """AutoAWQ's WQLinear_GEMM: columns of a word in the order 0 2 4 6 1 3 5 7; weight =
    (unpack(qweight) - unpack(qzeros)) * scales, [in, out]."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    groups = -(-k // group)

    def reorder(n):
        return n.reshape(n.shape[0], -1, 8)[:, :, order].reshape(n.shape)

    def undo(n):
        back = np.argsort(order)
        return n.reshape(n.shape[0], -1, 8)[:, :, back].reshape(n.shape)

    t = {"qweight": pack32(reorder(rng.integers(0, 16, (k, rows))), 1),
         "qzeros": pack32(reorder(rng.integers(0, 16, (groups, rows))), 1),
         "scales": scales_of(rng, (groups, rows), "f16")}
    q = undo(unpack32(t["qweight"], 1)).astype(np.float32)
    z = undo(unpack32(t["qzeros"], 1)).astype(np.float32)
    g = np.arange(k) // group
    return t, ((q - z[g]) * wide(t["scales"])[g]).T


def packed_int4(rng, rows, k, group, symmetric, scale):
    """compressed-tensors' PackedQuantizationCompressor: signed values plus 8, packed along the input
    channels, zero points along the output channels; weight = (q - zero_point) * scale."""
    groups = -(-k // group)
    signed = rng.integers(-8, 8, (rows, k))
    t = {"weight_packed": pack32(signed + 8, 1), "weight_scale": scales_of(rng, (rows, groups), scale)}
    g = np.arange(k) // group
    q = unpack32(t["weight_packed"], 1).astype(np.int32) - 8
    zero = np.zeros((rows, groups), np.int32)
    if not symmetric:
        t["weight_zero_point"] = pack32(rng.integers(-8, 8, (rows, groups)) + 8, 0)
        zero = unpack32(t["weight_zero_point"], 0).astype(np.int32) - 8
    return t, (q - zero[:, g]).astype(np.float32) * wide(t["weight_scale"])[:, g]


def int8(rng, rows, k, group):
    groups = -(-k // group) if group > 0 else 1
    t = {"weight": rng.integers(-127, 128, (rows, k)).astype(np.int8),
         "weight_scale": scales_of(rng, (rows, groups), "bf16")}
    g = np.arange(k) // group if group > 0 else np.zeros(k, int)
    return t, t["weight"].astype(np.float32) * wide(t["weight_scale"])[:, g]


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def nibbles_of(bytes_):
    return np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(*bytes_.shape[:-1], -1)


def nvfp4(rng, rows, k, packed):
    """compressed-tensors divides by weight_global_scale, modelopt multiplies by weight_scale_2."""
    code = F8(rng.integers(0x28, 0x7f, (rows, k // 16)))  # positive, below NaN
    whole = np.array([rng.uniform(900, 1100)], np.float32)
    codes = rng.integers(0, 256, (rows, k // 2)).astype(np.uint8)
    t = {"weight_packed" if packed else "weight": codes, "weight_scale": code}
    if packed:
        t["weight_global_scale"] = whole
        factor = np.float32(1) / whole[0]
    else:
        factor = (np.float32(1) / whole)[0]
        t["weight_scale_2"] = np.array(factor, np.float32)
    values = E2M1[nibbles_of(codes)] * np.repeat(code.wide(), 16, 1)
    return t, values * factor


def fp8(rng, rows, k):
    """DeepSeek-V3's weight_dequant: weight times the scale of its 128 x 128 block."""
    bits = rng.integers(0, 256, (rows, k))
    bits = np.where((bits & 0x7f) == 0x7f, 0, bits)
    shape = (-(-rows // 128), -(-k // 128))
    t = {"weight": F8(bits), "weight_scale_inv": scales_of(rng, shape, "f32")}
    s = np.repeat(np.repeat(t["weight_scale_inv"], 128, 0), 128, 1)[:rows, :k]
    return t, t["weight"].wide() * s


def fp8_scaled(rng, rows, k, shape, kind):
    """A scale a row or a matrix: vLLM's and compressed-tensors' float-quantized weights."""
    bits = rng.integers(0, 256, (rows, k))
    bits = np.where((bits & 0x7f) == 0x7f, 0, bits)
    t = {"weight": F8(bits), "weight_scale": scales_of(rng, shape, kind)}
    return t, t["weight"].wide() * wide(t["weight_scale"])


def plain(rng, rows, k):
    t = {"weight": Bf16(rng.normal(0, 1, (rows, k)).astype(np.float32).view(np.uint32) >> 16)}
    return t, t["weight"].wide()


def auto_round(rng, rows, k, group):
    """auto-round's own packing: GPTQ's, with zeros as they are and no g_idx."""
    t, values = gptq(rng, rows, k, group, False, v2=True)
    del t["g_idx"]
    return t, values


def compressed(weights, format_, inputs=None):
    return {"quant_method": "compressed-tensors", "format": format_, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": inputs}}}


def ct_int(bits, symmetric, group):
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False,
            "strategy": "group" if group > 0 else "channel", "actorder": None,
            "group_size": group if group > 0 else None}


FORMS = {
    "gptq_g128": (lambda r, n, k: gptq(r, n, k, 128, True),
                  {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True,
                   "desc_act": False, "checkpoint_format": "gptq"}),
    "gptq_g32_zeros": (lambda r, n, k: gptq(r, n, k, 32, False, "bf16", True),
                       {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False,
                        "desc_act": False, "checkpoint_format": "gptq_v2"}),
    "gptq_g64_zeros": (lambda r, n, k: gptq(r, n, k, 64, False),
                       {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False,
                        "desc_act": False}),
    "awq_g128": (lambda r, n, k: awq(r, n, k, 128),
                 {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True,
                  "version": "gemm", "modules_to_not_convert": None}),
    "packed_g32": (lambda r, n, k: packed_int4(r, n, k, 32, True, "bf16"),
                   compressed(ct_int(4, True, 32), "pack-quantized")),
    "packed_g128_zeros": (lambda r, n, k: packed_int4(r, n, k, 128, False, "f16"),
                          compressed(ct_int(4, False, 128), "pack-quantized")),
    "int8": (lambda r, n, k: int8(r, n, k, -1),
             compressed(ct_int(8, True, -1), "int-quantized",
                        {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"})),
    "int8_g128": (lambda r, n, k: int8(r, n, k, 128),
                  compressed(ct_int(8, True, 128), "int-quantized")),
    "nvfp4_packed": (lambda r, n, k: nvfp4(r, n, k, True),
                     compressed({"num_bits": 4, "type": "float", "symmetric": True,
                                 "strategy": "tensor_group", "group_size": 16},
                                "nvfp4-pack-quantized")),
    "nvfp4_modelopt": (lambda r, n, k: nvfp4(r, n, k, False),
                       {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}),
    "fp8_blocks": (fp8, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                         "weight_block_size": [128, 128]}),
    "gptq_channel": (lambda r, n, k: gptq(r, n, k, k, False),
                     {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False,
                      "desc_act": False, "checkpoint_format": "gptq"}),
    "packed_channel": (lambda r, n, k: packed_int4(r, n, k, k, False, "bf16"),
                       compressed(ct_int(4, False, -1), "pack-quantized")),
    "auto_round": (lambda r, n, k: auto_round(r, n, k, 64),
                   {"quant_method": "auto-round", "bits": 4, "group_size": 64, "sym": False,
                    "data_type": "int", "packing_format": "auto_round", "iters": 200,
                    "extra_config": {"model.layers.0.mlp.gate": {"bits": 16}}}),
    "fp8_channel": (lambda r, n, k: fp8_scaled(r, n, k, (n, 1), "bf16"),
                    compressed({"num_bits": 8, "type": "float", "symmetric": True,
                                "strategy": "channel"}, "float-quantized",
                               {"num_bits": 8, "type": "float", "dynamic": True,
                                "strategy": "token"})),
    "fp8_tensor": (lambda r, n, k: fp8_scaled(r, n, k, (), "f32"),
                   {"quant_method": "fp8", "activation_scheme": "static"}),
    "gptq_some": (lambda r, n, k: gptq(r, n, k, 128, True),
                  {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True,
                   "desc_act": False, "checkpoint_format": "gptq"}),
    "modelopt_mixed": (lambda r, n, k: nvfp4(r, n, k, False),
                       {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                        "exclude_modules": ["lm_head", "model.layers.0.mlp.gate"],
                        "quantized_layers": {
                            f"model.layers.0.mlp.experts.{e}.{p}": {"quant_algo": "FP8"} if e else
                            {"quant_algo": "NVFP4", "group_size": 16}
                            for e in range(EXPERTS) for p in ("gate_proj", "up_proj", "down_proj")}}),
}
# The form of the last expert where it differs.
LAST_EXPERT = {"gptq_some": plain,
               "modelopt_mixed": lambda r, n, k: fp8_scaled(r, n, k, (), "f32")}


def sample(rng, expert, part, values, places, expected):
    rows = rng.integers(0, values.shape[0], SAMPLES)
    cols = rng.integers(0, values.shape[1], SAMPLES)
    for r, c in zip(rows, cols):
        places.append([expert, part, r, c])
        expected.append(values[r, c])


def save(out, name, config, tensors, places, expected):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    write(os.path.join(folder, "model.safetensors"), tensors)
    write(os.path.join(folder, "expected.safetensors"),
          {"places": np.array(places, np.int32), "values": np.array(expected, np.float32)})


def router(rng):
    return Bf16(rng.normal(0, 1, (EXPERTS, HIDDEN)).astype(np.float32).view(np.uint32) >> 16)


def separate(out, name, seed):
    make, quantization = FORMS[name]
    rng = np.random.default_rng(seed)
    prefix = "model.layers.0.mlp."
    tensors, places, expected = {prefix + "gate.weight": router(rng)}, [], []
    for e in range(EXPERTS):
        for part, projection in enumerate(("gate_proj", "up_proj", "down_proj")):
            rows, k = (HIDDEN, WIDTH) if part == 2 else (WIDTH, HIDDEN)
            last = e == EXPERTS - 1 and name in LAST_EXPERT
            made, values = (LAST_EXPERT[name] if last else make)(rng, rows, k)
            for suffix, t in made.items():
                tensors[f"{prefix}experts.{e}.{projection}.{suffix}"] = t
            sample(rng, e, part, values, places, expected)
    save(out, name, {**CONFIG, "quantization_config": quantization}, tensors, places, expected)


def mxfp4(out, name, seed):
    """gpt-oss: all experts in one tensor, gate and up rows in turns; weight = e2m1 *
    2^(scale - 127), the lower channel in the low nibble (transformers' convert_moe_packed_tensors)."""
    rng = np.random.default_rng(seed)
    prefix = "model.layers.0.mlp."
    tensors, places, expected = {prefix + "gate.weight": router(rng)}, [], []
    made = {}
    for tensor, rows, k in (("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)):
        blocks = rng.integers(0, 256, (EXPERTS, rows, k // 32, 16)).astype(np.uint8)
        scales = rng.integers(115, 125, (EXPERTS, rows, k // 32)).astype(np.uint8)
        bias = rng.normal(0, 1, (EXPERTS, rows)).astype(np.float32)
        tensors[f"{prefix}experts.{tensor}_blocks"] = blocks
        tensors[f"{prefix}experts.{tensor}_scales"] = scales
        tensors[f"{prefix}experts.{tensor}_bias"] = Bf16(bias.view(np.uint32) >> 16)
        values = np.ldexp(E2M1[nibbles_of(blocks)], scales[..., None].astype(int) - 127)
        made[tensor] = values.reshape(EXPERTS, rows, k).astype(np.float32)
    for e in range(EXPERTS):
        sample(rng, e, 0, made["gate_up_proj"][e][0::2], places, expected)
        sample(rng, e, 1, made["gate_up_proj"][e][1::2], places, expected)
        sample(rng, e, 2, made["down_proj"][e], places, expected)
    config = {**CONFIG, "quantization_config": {"quant_method": "mxfp4",
                                                "modules_to_not_convert": ["lm_head"]}}
    save(out, name, config, tensors, places, expected)


def fp4_rows(out, name, seed):
    """DeepSeek-V4: weight = FP4_TABLE[code] * scale of 32 channels, the lower channel in the low
    nibble (cast_e2m1fn_to_e4m3fn of its inference code). The last expert's matrices are fp8, each
    with the scale of its block."""
    rng = np.random.default_rng(seed)
    prefix = "layers.0.ffn."
    tensors, places, expected = {prefix + "gate.weight": router(rng)}, [], []
    tensors[prefix + "gate.bias"] = rng.normal(0, 1, EXPERTS).astype(np.float32)
    for e in range(EXPERTS):
        for part, projection in enumerate(("w1", "w3", "w2")):
            rows, k = (HIDDEN, WIDTH) if part == 2 else (WIDTH, HIDDEN)
            base = f"{prefix}experts.{e}.{projection}."
            if e == EXPERTS - 1:
                made, values = fp8(rng, rows, k)
                exponents = rng.integers(115, 125, made["weight_scale_inv"].shape)
                values = made["weight"].wide() * np.repeat(np.repeat(np.ldexp(
                    np.float32(1), exponents - 127), 128, 0), 128, 1)[:rows, :k]
                tensors[base + "weight"] = made["weight"]
            else:
                codes = rng.integers(0, 256, (rows, k // 2)).astype(np.uint8)
                exponents = rng.integers(115, 125, (rows, k // 32))
                values = np.ldexp(E2M1[nibbles_of(codes)], np.repeat(exponents - 127, 32, 1))
                tensors[base + "weight"] = codes.view(np.int8)
            tensors[base + "scale"] = E8m0(exponents)
            sample(rng, e, part, values, places, expected)
    save(out, name, {**V4, "quantization_config": FORMS["fp8_blocks"][1]}, tensors, places, expected)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    for i, name in enumerate(FORMS):
        separate(out, name, 100 + i)
    mxfp4(out, "mxfp4", 200)
    fp4_rows(out, "fp4_rows", 201)


if __name__ == "__main__":
    main()
