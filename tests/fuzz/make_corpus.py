#!/usr/bin/env python3
"""Writes corpus/: what the fuzzers start from, and what ctest replays. Small valid files of every kind
and variants, written by this script without packages. (moert.json and the trace are written by the
library: see seeds_from_tools; plans are made from that moert.json.) Files called found-NN are inputs that libFuzzer kept.

    python3 make_corpus.py [BUILD_DIR]     # with a build, also manifest/ and trace/
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8,
         "I8": 1, "F8_E8M0": 1, "BOOL": 1}


def write(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def safetensors(tensors):
    """tensors: name -> (dtype, shape), or (dtype, shape, bytes that repeat)."""
    header, data = {}, b""
    for name, (dtype, shape, *fill) in tensors.items():
        size = SIZES[dtype]
        for d in shape:
            size *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        pattern = fill[0] if fill else bytes((i * 37 + 11) % 120 for i in range(120))
        data += (pattern * (size // len(pattern) + 1))[:size]
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def dump(value):
    return json.dumps(value, separators=(",", ":"))


COMMON = dict(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
              num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5)
LATENT = dict(kv_lora_rank=4, q_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)
CONFIGS = {
    "deepseek_v4_published": dict(
        COMMON, model_type="deepseek_v4", hidden_size=32, num_hidden_layers=3, head_dim=16,
        qk_rope_head_dim=4, q_lora_rank=4, o_groups=2, o_lora_rank=16, sliding_window=8,
        compress_ratios=[0, 4, 128, 0], compress_rates=dict(compressed_sparse_attention=2),
        compress_rate_hca=8, index_n_heads=2, index_head_dim=4, index_topk=2, hc_mult=2,
        hc_sinkhorn_iters=3, n_routed_experts=2, n_shared_experts=0, num_experts_per_tok=1,
        num_hash_layers=1, moe_intermediate_size=32, swiglu_limit=7.0, scoring_func="sqrtsoftplus",
        expert_dtype="fp4", compress_rope_theta=160000,
        rope_scaling=dict(type="yarn", factor=16, original_max_position_embeddings=16),
        quantization_config=dict(quant_method="fp8", fmt="float8_e4m3fn",
                                 weight_block_size=[128, 128])),
    "qwen2_moe": dict(COMMON, model_type="qwen2_moe", num_experts=2, num_experts_per_tok=1,
                      moe_intermediate_size=4, shared_expert_intermediate_size=4, intermediate_size=8,
                      mlp_only_layers=[], decoder_sparse_step=1, qkv_bias=True),
    "qwen3_moe": dict(COMMON, model_type="qwen3_moe", num_experts=2, num_experts_per_tok=2, head_dim=4,
                      moe_intermediate_size=4, norm_topk_prob=True,
                      rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=16.0, truncate=False,
                                        original_max_position_embeddings=16, mscale=1.0)),
    "qwen3_moe_fp8": dict(COMMON, model_type="qwen3_moe", num_experts=2, num_experts_per_tok=2,
                          moe_intermediate_size=4,
                          quantization_config=dict(quant_method="fp8", fmt="e4m3",
                                                   weight_block_size=[128, 128])),
    **{name: dict(COMMON, model_type="qwen3_moe", num_local_experts=2, num_experts_per_tok=2,
                  hidden_size=32, moe_intermediate_size=32, quantization_config=quantization)
       for name, quantization in {
           "gptq": dict(quant_method="gptq", bits=4, group_size=32, sym=False, desc_act=False),
           "awq": dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm"),
           "packed": dict(quant_method="compressed-tensors", format="pack-quantized", config_groups={
               "a": dict(targets=["Linear"], weights=dict(num_bits=4, symmetric=False,
                                                          strategy="group", group_size=32))}),
           "int8": dict(quant_method="compressed-tensors", format="int-quantized", config_groups={
               "a": dict(targets=["Linear"], weights=dict(num_bits=8, symmetric=True,
                                                          strategy="channel"),
                         input_activations=dict(num_bits=8))}),
           "nvfp4": dict(quant_method="compressed-tensors", format="nvfp4-pack-quantized",
                         config_groups={"a": dict(weights=dict(num_bits=4, strategy="tensor_group",
                                                               group_size=16))}),
           "modelopt": dict(quant_method="modelopt", quant_algo="NVFP4", group_size=16),
           "mxfp4": dict(quant_method="mxfp4")}.items()},
    **{name: dict(COMMON, model_type="qwen3_moe", num_local_experts=2, num_experts_per_tok=2,
                  hidden_size=hidden, moe_intermediate_size=8, quantization_config=quantization)
       for name, hidden, quantization in [
           ("gptq_symmetric", 64, dict(quant_method="gptq", bits=4, group_size=32, sym=True, desc_act=True)),
           ("gptq_v2", 64, dict(quant_method="gptq", bits=4, group_size=64, sym=True,
                                checkpoint_format="gptq_v2")),
           ("awq_g64", 64, dict(quant_method="awq", bits=4, group_size=64, zero_point=True)),
           ("packed_symmetric", 64, dict(
               quant_method="compressed-tensors", format="pack-quantized", config_groups={
                   "a": dict(targets=["Linear"], weights=dict(num_bits=4, symmetric=True,
                                                              strategy="group", group_size=32))})),
           ("int8_g128", 128, dict(
               quant_method="compressed-tensors", format="int-quantized", config_groups={
                   "a": dict(weights=dict(num_bits=8, symmetric=True, strategy="group",
                                          group_size=128))})),
           ("fp8_blocks", 136, dict(quant_method="fp8", fmt="e4m3", weight_block_size=[128, 128])),
           ("fp8_tensor", 32, dict(quant_method="fp8", activation_scheme="static")),
           ("fp8_channel", 32, dict(
               quant_method="compressed-tensors", format="mixed-precision", config_groups={
                   "a": dict(weights=dict(num_bits=8, type="float", strategy="channel"),
                             format="float-quantized"),
                   "b": dict(weights=dict(num_bits=8, type="float", strategy="block",
                                          block_structure=[128, 128]), format="float-quantized")})),
           ("auto_round", 32, dict(quant_method="auto-round", bits=4, group_size=-1, sym=False,
                                   packing_format="auto_round", data_type="int")),
           ("packed_channel", 64, dict(
               quant_method="compressed-tensors", format="pack-quantized", config_groups={
                   "a": dict(weights=dict(num_bits=4, symmetric=False, strategy="channel"))}))]},
    "gpt_oss_mxfp4": dict(COMMON, model_type="gpt_oss", num_local_experts=2, num_experts_per_tok=1,
                          hidden_size=32, intermediate_size=32, layer_types=["sliding_attention"],
                          sliding_window=8, quantization_config=dict(quant_method="mxfp4")),
    "mixtral": dict(COMMON, model_type="mixtral", num_local_experts=2, num_experts_per_tok=2,
                    intermediate_size=4, sliding_window=8, eos_token_id=[1, 2]),
    "olmoe": dict(COMMON, model_type="olmoe", num_experts=2, num_experts_per_tok=2,
                  intermediate_size=4, clip_qkv=8.0, rope_scaling=dict(type="linear", factor=2.0)),
    "phimoe": dict(COMMON, model_type="phimoe", num_local_experts=2, intermediate_size=4, lm_head_bias=True,
                   attention_bias=True,
                   rope_scaling=dict(type="longrope", short_factor=[1.0, 1.1], long_factor=[1.0, 2.0],
                                     short_mscale=1.1, long_mscale=1.2,
                                     original_max_position_embeddings=16)),
    "deepseek": dict(COMMON, model_type="deepseek", num_hidden_layers=2, n_routed_experts=2, n_shared_experts=1,
                     num_experts_per_tok=1, moe_intermediate_size=4, intermediate_size=8,
                     first_k_dense_replace=1, moe_layer_freq=1, scoring_func="softmax"),
    "deepseek_v2": dict(COMMON, **LATENT, model_type="deepseek_v2", moe_intermediate_size=4,
                        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=1,
                        topk_method="group_limited_greedy", n_group=2, topk_group=1,
                        routed_scaling_factor=16.0,
                        rope_scaling=dict(type="yarn", factor=4.0, mscale=0.7, mscale_all_dim=0.7,
                                          original_max_position_embeddings=16)),
    "deepseek_v3": dict(COMMON, **LATENT, model_type="deepseek_v3", moe_intermediate_size=4,
                        n_routed_experts=4, num_experts_per_tok=2, topk_method="noaux_tc",
                        scoring_func="sigmoid", n_group=2, topk_group=1, rope_interleave=True),
    "glm4_moe": dict(COMMON, model_type="glm4_moe", head_dim=8, partial_rotary_factor=0.5,
                     use_qk_norm=True, n_routed_experts=2, num_experts_per_tok=1,
                     moe_intermediate_size=4),
    "ernie4_5_moe": dict(COMMON, model_type="ernie4_5_moe", moe_num_experts=2, moe_k=1,
                         moe_intermediate_size=4, moe_layer_start_index=0, moe_layer_end_index=-1,
                         moe_layer_interval=1, use_bias=False),
    "minimax_m2": dict(COMMON, model_type="minimax_m2", head_dim=8, rotary_dim=4, num_local_experts=2,
                       num_experts_per_tok=1, intermediate_size=4, qk_norm_type="per_layer"),
    "qwen3_next": dict(COMMON, model_type="qwen3_next", head_dim=16, num_experts=2,
                       num_experts_per_tok=1, moe_intermediate_size=4,
                       shared_expert_intermediate_size=4, layer_types=["linear_attention"],
                       linear_num_key_heads=1, linear_num_value_heads=2,
                       rope_parameters=dict(rope_type="default", partial_rotary_factor=0.25,
                                            rope_theta=1e7)),
    "gpt_oss": dict(COMMON, model_type="gpt_oss", num_local_experts=2, num_experts_per_tok=1,
                    intermediate_size=4, sliding_window=8, layer_types=["sliding_attention"],
                    swiglu_limit=7.0),
    "llama4": dict(model_type="llama4", text_config=dict(
        COMMON, num_local_experts=2, intermediate_size=4, no_rope_layers=[1], moe_layers=[0],
        attention_chunk_size=8, attn_temperature_tuning=4, floor_scale=8192, attn_scale=0.1)),
    "xverse": dict(COMMON, model_type="xverse", num_experts=2, moe_top_k=2, num_shared_experts=1,
                   intermediate_size=4,
                   rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1,
                                        high_freq_factor=4, original_max_position_embeddings=16)),
}


def experts(prefix, names, suffix=".weight", dtype="BF16", count=2):
    gate, up, down = names
    out = {}
    for e in range(count):
        out[f"{prefix}.{e}.{gate}{suffix}"] = (dtype, [4, 8])
        out[f"{prefix}.{e}.{up}{suffix}"] = (dtype, [4, 8])
        out[f"{prefix}.{e}.{down}{suffix}"] = (dtype, [8, 4])
    return out


def shared(prefix):
    return {f"{prefix}.gate_proj.weight": ("BF16", [4, 8]), f"{prefix}.up_proj.weight": ("F16", [4, 8]),
            f"{prefix}.down_proj.weight": ("F32", [8, 4])}


def quantized(prefix, tensors, hidden=32, width=32):
    """The tensors of each of two experts' three matrices; tensors: of a matrix of [rows, k]."""
    shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    return {f"{prefix}.experts.{e}.{p}.{name}": t for e in range(2) for p, (rows, k) in shapes.items()
            for name, t in tensors(rows, k).items()}


def in_order(k, group):
    """Which group each of k channels belongs to."""
    return struct.pack(f"<{k}i", *(i // group for i in range(k)))


def gptq(group, zeros=None, scales="F16"):
    def tensors(rows, k):
        groups = -(-k // group)
        return {"qweight": ("I32", [k // 8, rows]), "scales": (scales, [groups, rows]),
                "qzeros": ("I32", [groups, rows // 8], *([zeros] if zeros else [])),
                "g_idx": ("I32", [k], in_order(k, group))}
    return tensors


def awq(group):
    return lambda rows, k: {"qweight": ("I32", [k, rows // 8]), "scales": ("F16", [-(-k // group), rows]),
                            "qzeros": ("I32", [-(-k // group), rows // 8])}


def packed(group, symmetric):
    def tensors(rows, k):
        groups = -(-k // group)
        zeros = {} if symmetric else {"weight_zero_point": ("I32", [rows // 8, groups])}
        return {"weight_packed": ("I32", [rows, k // 8]), **zeros,
                "weight_g_idx": ("I32", [k], in_order(k, group)),
                "weight_scale": ("BF16", [rows, groups])}
    return tensors


def int8(group, scales):
    return lambda rows, k: {"weight": ("I8", [rows, k]),
                            "weight_scale": (scales, [rows, -(-k // group) if group else 1],
                                             struct.pack("<f", 0.5))}


def fp8(scales, shape):
    return lambda rows, k: {"weight": ("F8_E4M3", [rows, k]),
                            "weight_scale": (scales, [rows, 1] if shape is None else shape)}


def nvfp4(codes, whole, shape):
    return lambda rows, k: {codes: ("U8", [rows, k // 2]), whole: ("F32", shape, struct.pack("<f", 0.5)),
                            "weight_scale": ("F8_E4M3", [rows, -(-k // 16)])}


# By configuration: the tensors of a matrix.
QUANTIZED = {
    "gptq": gptq(32), "gptq_symmetric": gptq(32, b"\x77", "BF16"), "gptq_v2": gptq(64, b"\x88"),
    "awq": awq(32), "awq_g64": awq(64),
    "packed": packed(32, False), "packed_symmetric": packed(32, True),
    "int8": int8(0, "BF16"), "int8_g128": int8(128, "F32"),
    "nvfp4": nvfp4("weight_packed", "weight_global_scale", [1]),
    "modelopt": nvfp4("weight", "weight_scale_2", []),
    "fp8_tensor": fp8("F32", []), "fp8_channel": fp8("BF16", None),
    "auto_round": gptq(1 << 20), "packed_channel": packed(1 << 20, False),
}


def models():
    mlp, proj = "model.layers.0.mlp", ("gate_proj", "up_proj", "down_proj")
    gate = {mlp + ".gate.weight": ("F32", [2, 8])}
    yield "qwen2_moe", "qwen2_moe", {**experts(mlp + ".experts", proj), **gate,
                                     **shared(mlp + ".shared_expert"),
                                     mlp + ".shared_expert_gate.weight": ("BF16", [1, 8])}
    yield "fused", "qwen3_moe", {**gate, mlp + ".experts.gate_up_proj": ("BF16", [2, 8, 8]),
                                 mlp + ".experts.down_proj": ("BF16", [2, 8, 4])}
    yield "transposed", "qwen3_moe", {**gate, mlp + ".switch_mlp.gate_proj.weight": ("F16", [2, 8, 4]),
                                      mlp + ".switch_mlp.up_proj.weight": ("F16", [2, 8, 4]),
                                      mlp + ".switch_mlp.down_proj.weight": ("F16", [2, 4, 8])}
    fp8 = experts(mlp + ".experts", proj, dtype="F8_E4M3")
    yield "fp8", "qwen3_moe_fp8", {**gate, **fp8, **{n + "_scale_inv": ("F32", [1, 1]) for n in fp8}}
    for form, tensors in QUANTIZED.items():
        hidden, width = CONFIGS[form]["hidden_size"], CONFIGS[form]["moe_intermediate_size"]
        yield form, form, {mlp + ".gate.weight": ("F32", [2, hidden]),
                           **quantized(mlp, tensors, hidden, width)}
    fp8 = quantized(mlp, lambda rows, k: {"weight": ("F8_E4M3", [rows, k]), "weight_scale_inv": (
        "F32", [-(-rows // 128), -(-k // 128)])}, 136, 8)
    yield "fp8_blocks", "fp8_blocks", {mlp + ".gate.weight": ("F32", [2, 136]), **fp8}
    order = quantized(mlp, gptq(32, b"\x77", "BF16"), 64, 8)
    order = {n: (*t[:2], struct.pack(f"<{t[1][0]}i", *reversed(struct.unpack(f"<{t[1][0]}i", t[2]))))
             if n.endswith("g_idx") else t for n, t in order.items()}
    yield "gptq_act_order", "gptq_symmetric", {mlp + ".gate.weight": ("F32", [2, 64]), **order}
    some = quantized(mlp, gptq(32, b"\x77", "BF16"), 64, 8)
    some = {n: t for n, t in some.items() if ".experts.1." not in n}
    for p, shape in (("gate_proj", [8, 64]), ("up_proj", [8, 64]), ("down_proj", [64, 8])):
        some[f"{mlp}.experts.1.{p}.weight"] = ("BF16", shape)
    yield "gptq_some", "gptq_symmetric", {mlp + ".gate.weight": ("F32", [2, 64]), **some}
    mxfp4 = {mlp + ".experts.gate_up_proj_blocks": ("U8", [2, 64, 1, 16]),
             mlp + ".experts.gate_up_proj_scales": ("U8", [2, 64, 1]),
             mlp + ".experts.down_proj_blocks": ("U8", [2, 32, 1, 16]),
             mlp + ".experts.down_proj_scales": ("U8", [2, 32, 1])}
    yield "mxfp4", "mxfp4", {mlp + ".gate.weight": ("F32", [2, 32]), **mxfp4}
    yield "gpt_oss_mxfp4", "gpt_oss_mxfp4", {
        mlp + ".router.weight": ("F32", [2, 32]), mlp + ".router.bias": ("BF16", [2]), **mxfp4,
        mlp + ".experts.gate_up_proj_bias": ("BF16", [2, 64]),
        mlp + ".experts.down_proj_bias": ("BF16", [2, 32])}
    rows = {f"layers.{l}.ffn.experts.{e}.{w}.{part}": (dtype, [32, width])
            for l in range(3) for e in range(2) for w in ("w1", "w2", "w3")
            for part, dtype, width in (("weight", "I8", 16), ("scale", "F8_E8M0", 1))}
    yield "fp4_rows", "deepseek_v4_published", {
        "layers.0.ffn.gate.tid2eid": ("I64", [32, 1], bytes(8)), **rows,
        **{f"layers.{l}.ffn.gate.weight": ("F32", [2, 32]) for l in range(3)},
        **{f"layers.{l}.ffn.gate.bias": ("F32", [2]) for l in (1, 2)}}
    block = "model.layers.0.block_sparse_moe"
    yield "mixtral", "mixtral", {**experts(block + ".experts", ("w1", "w3", "w2")),
                                 block + ".gate.weight": ("BF16", [2, 8])}
    yield "renamed", "mixtral", {**experts(mlp + ".experts", proj), **gate}
    second = "model.layers.1.mlp"
    yield "deepseek", "deepseek", {**experts(second + ".experts", proj), **shared(second + ".shared_experts"),
                                   second + ".gate.weight": ("BF16", [2, 8])}


def tokenizers():
    alphabet = [chr(b) for b in range(33, 127)] + [chr(0x100 + i) for i in range(33)] + ["\u0120a", "ab"]
    byte_level = {
        "added_tokens": [{"id": 0, "content": "<s>", "special": True, "lstrip": False, "rstrip": True}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+|\\s+"}, "behavior": "Isolated"},
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]},
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
             "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}]},
        "model": {"type": "BPE", "vocab": {"<s>": 0, **{t: i + 1 for i, t in enumerate(alphabet)}},
                  "merges": [["a", "b"], "\u0120 a"]}}
    yield "byte_level", dump(byte_level)
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for t in [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "ab", "\u2581a"]:
        vocab[t] = len(vocab)
    fallback = {
        "added_tokens": [{"id": i, "content": t, "normalized": False} for t, i in list(vocab.items())[:3]],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "post_processor": byte_level["post_processor"]["processors"][1] | {
            "special_tokens": {"<s>": {"ids": [1]}}},
        "model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True,
                  "vocab": vocab, "merges": ["a b", "\u2581 a"]}}
    yield "fallback", dump(fallback)
    meta = dict(fallback, normalizer=None, pre_tokenizer={
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True})
    yield "metaspace", dump(meta) + "\0 ab\xff <s>a  b"


def plans():
    """Of the model of the manifest in corpus/manifest: one format, and one an expert."""
    with open(os.path.join(HERE, "corpus", "manifest", "two_versions.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    plan = {"format": "moert plan", "format_version": 1, "source_identity": "0123456789abcdef",
            "summary": {"bits": 4.25}, "model": manifest["model"], "version": manifest["versions"][1]}
    yield "one_format", dump(plan)
    w2, w4 = "w2a16_g-1_asym", "w4a16_g-1_asym"
    assignment = [[e % 2 for e in range(layer["num_experts"])] for layer in plan["model"]["layers"]]
    plan["version"] = {"name": "mixed", "formats": [[w4, w4, w2], [w2, w2, w4, "hadamard"]],
                       "assignment": assignment}
    yield "two_formats", dump(plan)


def calibrations():
    """Of the same model, and a line of one layer with two experts; even sizes keep their checksum."""
    with open(os.path.join(HERE, "corpus", "manifest", "two_versions.json"), encoding="utf-8") as f:
        model = json.load(f)["model"]
    def layer(experts, schemes):
        return dict(cross_layer_accuracy=0.5, delta=[0.25] * (experts * 3 * schemes), output_norm=2.5,
                    selections=[3] * experts, weight_sums=[1.5] * experts)
    whole = {"format": "moert calibration", "format_version": 1, "hadamard": False, "method": "rtn",
             "layers": [layer(spec["num_experts"], 2) for spec in model["layers"]], "model": model,
             "schemes": ["w4a16_g128", "w8a16_g-1"], "source_identity": "0123456789abcdef",
             "tokens": 64, "tokens_checksum": "fedcba9876543210", "window": 32}
    def odd(value):
        text = dump(value)
        return text + " " * (1 - len(text) % 2)
    yield "whole", odd(whole)
    for part in whole["layers"]:
        part["loss_per_square"] = [0.125, 0.0625]
    yield "probed", odd(dict(whole, probe_tokens=16, probe_scheme="w4a16_g128"))
    yield "unsealed", odd(whole) + " "
    yield "line", odd(layer(2, 2))


def shards():
    """The index, a zero byte, what every shard holds. Without an index: the length of the first of two
    shards, which follow."""
    shard = safetensors({"a": ("BF16", [2, 3]), "b": ("F32", [2])})
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    for name, files in {"one": {"a": one, "b": one}, "two": {"a": one, "b": two},
                        "missing": {"a": one, "c": two}, "outside": {"a": "../" + one},
                        "absolute": {"a": "/" + one}, "control": {"a": "\x1b[2J\x01"}, "number": {"a": 1}, "empty": {}}.items():
        index = dump(dict(metadata=dict(total_size=20), weight_map=files))
        yield name, index.encode() + b"\0" + shard
    numbered = b"\0" + struct.pack("<H", len(shard)) + shard
    yield "numbered", numbered + safetensors({"c": ("BF16", [2])})
    yield "numbered_twice", numbered + shard


def hf_quant_configs():
    """What ModelOpt writes beside config.json."""
    layers = {"a": dict(quant_algo="NVFP4", group_size=16), "b": dict(quant_algo="FP8")}
    for name, quantization in {
            "nvfp4": dict(quant_algo="NVFP4", kv_cache_quant_algo="FP8", group_size=16,
                          exclude_modules=["lm_head"]),
            "fp8": dict(quant_algo="FP8", kv_cache_quant_algo=None),
            "mixed": dict(quant_algo="MIXED_PRECISION", quantized_layers=layers),
            "awq": dict(quant_algo="W4A16_AWQ", group_size=128, has_zero_point=False)}.items():
        yield name, dump(dict(producer=dict(name="modelopt", version="0.40.0"), quantization=quantization))


def generation_configs():
    yield "greedy", dump(dict(eos_token_id=[1, 2], transformers_version="4.57.0"))
    yield "sampled", dump(dict(do_sample=True, temperature=0.7, top_p=0.8, min_p=0.05, top_k=20,
                               repetition_penalty=1.05))
    yield "negative", dump(dict(do_sample=True, temperature=-1, top_k=-1e300))
    yield "words", dump(dict(do_sample=True, temperature="hot", top_k=None))


def messages():
    """A byte that chooses the reader of messages_fuzz.cc, then a file that is refused over a name: one
    that turns text round, with control characters of two kinds."""
    name = "\u202eA\u009b31m\x1b[2J\n"
    raw = lambda value: json.dumps(value, ensure_ascii=False).encode()
    header = raw({name: dict(dtype=name, shape=[1], data_offsets=[0, 2])})
    yield "safetensors", 0, struct.pack("<Q", len(header)) + header + b"ab"
    for kind, file in enumerate(("manifest", "plan", "calibration"), 1):
        yield file, kind, raw({name: name, "format": name, "model": name, "layers": [name]})
    yield "model_type", 4, raw(dict(model_type=name))
    yield "hidden_size", 4, raw(dict(model_type="qwen3_moe", hidden_size=name))
    yield "twice", 4, b'{"' + name.encode() + b'":1,"' + name.encode() + b'":2}'
    yield "shards", 5, raw(dict(weight_map={"a": "\u202eA\u009b.safetensors"}))
    yield "tensor", 5, raw(dict(weight_map={name: 1}))
    yield "profile", 6, raw({"version": name, name: name})
    yield "trace", 7, name.encode() * 9
    yield "tokens", 8, b"\xff" * 8
    yield "model", 9, raw(dict(model=dict(type=name)))
    split = dict(type="Split", pattern=dict(Regex="(" + name * 300), behavior="Isolated", invert=False)
    bpe = dict(type="BPE", vocab={"a": 0}, merges=[])
    yield "regex", 9, raw(dict(model=bpe, pre_tokenizer=split))
    yield "pre_tokenizer", 9, raw(dict(model=bpe, pre_tokenizer=dict(type=name)))
    yield "key", 9, b'{"' + name.encode() * 500 + b'":' + name.encode()


def chats():
    """tokenizer_config.json, chat_template.jinja and a user's words, a zero byte between."""
    turn = "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    chatml = "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{{ " + turn + " }}"
    marks = {"llama3": "<|start_header_id|> <|eot_id|>", "mistral": "{{ ' [INST] ' + m + ' [/INST]' }}",
             "gemma": "<start_of_turn> <end_of_turn>", "deepseek": "{{ 'User: ' }}{{ 'Assistant:' }}"}
    yield "jinja", "{}\0" + chatml + "\0Hi"
    yield "config", dump(dict(chat_template=chatml, bos_token="<s>", eos_token=dict(content="</s>")))
    yield "named", dump(dict(chat_template=[dict(name="tools", template="x"),
                                            dict(name="default", template=chatml)]))
    for name, text in marks.items():
        yield name, dump(dict(bos_token="<s>", eos_token="</s>")) + "\0" + text + "\0a\nb"
    yield "unknown", dump(dict(chat_template="{{ messages }}"))


def tokens():
    """Kind, vocabulary, limit, file."""
    yield "u16", struct.pack("<BHB4H", 0, 99, 0, 1, 2, 3, 99)
    yield "u16_odd", struct.pack("<BHBHB", 0, 99, 0, 1, 2)
    yield "u16_beyond", struct.pack("<BHB2H", 0, 9, 0, 1, 10)
    yield "u32", struct.pack("<BHB3I", 1, 65535, 2, 1, 65535, 7)
    yield "u32_beyond", struct.pack("<BHBI", 1, 65535, 0, 0xFFFFFFFF)
    yield "text", struct.pack("<BHB", 2, 255, 5) + "a \u00e9\u4e2d\n".encode()
    yield "text_no_utf8", struct.pack("<BHB", 2, 255, 0) + b"a\xff\xc0\x80"
    yield "empty", struct.pack("<BHB", 2, 255, 0)


def seeds_from_tools(build):
    """A pack's manifest and a trace, as the tools write them, of the smallest model there is."""
    with tempfile.TemporaryDirectory() as tmp:
        def run(tool, *arguments):
            subprocess.run([os.path.join(build, "bin", "moert-" + tool), *arguments], check=True,
                           stdout=subprocess.DEVNULL)
        model = os.path.join(ROOT, "tests", "data", "architectures", "deepseek")
        pack = os.path.join(tmp, "pack")
        run("pack", "quantize", "--model", model, "--out", pack, "--schemes", "bf16,w4a16_g128")
        with open(os.path.join(pack, "moert.json"), "rb") as f:
            write("manifest", "two_versions.json", f.read())
        tokens = os.path.join(tmp, "tokens.u16")
        with open(tokens, "wb") as f:
            f.write(struct.pack("<8H", *range(1, 9)))
        trace = os.path.join(tmp, "trace")
        run("run", "ppl", "--model", model, "--tokens", tokens, "--window", "4", "--trace", trace,
            "--cache", tmp, "--clock", "virtual", "--quiet")
        with open(trace, "rb") as f:
            write("trace", "two_windows.trace", f.read())


def main():
    for name, config in CONFIGS.items():
        write("hf_config", name + ".json", dump(config))
    families = os.path.join(ROOT, "tests", "data", "families", "configs.json")
    with open(families) as f:  # lists, letters, nested objects
        published = json.load(f)
    for name in ("deepseek_v4", "ernie4_5_vl_moe", "granitemoe", "longcat_flash", "mimo_v2_flash",
                 "nemotron_h", "qwen3_omni_moe"):
        write("hf_config", name + ".json", dump(published[name]["config"]))
    with open(os.path.join(ROOT, "tests", "data", "families", "published.json")) as f:
        published = json.load(f)  # Infinity, forms by layer
    for name in ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nvidia/DeepSeek-V4-Flash-NVFP4"):
        write("hf_config", name.split("/")[1] + ".json", dump(published[name]["config"]))
    for name, config, tensors in models():
        write("model", name, dump(CONFIGS[config]).encode() + b"\0" + safetensors(tensors))
    for name, text in hf_quant_configs():
        write("hf_quant_config", name + ".json", text)
    for name, text in generation_configs():
        write("generation", name + ".json", text)
    for name, text in tokenizers():
        write("tokenizer", name + ".json", text.encode("utf-8", "surrogateescape"))
    write("safetensors", "all_types", safetensors({
        **{d.lower(): (d, [2, 3]) for d in SIZES}, "scalar": ("F32", []), "none": ("BF16", [0, 5])}))
    write("safetensors", "fp8", safetensors({"w": ("F8_E4M3", [130, 3]), "w_scale_inv": ("F32", [2, 1])}))
    write("safetensors", "metadata", struct.pack("<Q", 40) + b'{"__metadata__":{"format":"pt","a":"b"}}')
    write("profile", "all_fields.json", dump(dict(
        name="x", link_bytes_per_s=1e9, link_latency_ns=5000, decode_layer_ns=5e5, prefill_token_ns=2000,
        cpu_weight_bytes_per_s=1e10, cpu_expert_latency_ns=10, cpu_next_token_share=0.5, cpu_executor=True)))
    for name, text in chats():
        write("chat", name, text)
    for name, data in tokens():
        write("tokens", name, data)
    for name, text in plans():
        write("plan", name + ".json", text)
    for name, text in calibrations():
        write("calibration", name + ".json", text)
    for name, data in shards():
        write("shards", name, data)
    for name, kind, data in messages():
        write("messages", name, bytes([kind]) + data)
    if len(sys.argv) > 1:
        seeds_from_tools(os.path.abspath(sys.argv[1]))


if __name__ == "__main__":
    main()
