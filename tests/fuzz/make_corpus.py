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
    """tensors: name -> (dtype, shape)."""
    header, data = {}, b""
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for d in shape:
            size *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes((i * 37 + 11) % 120 for i in range(size))
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def dump(value):
    return json.dumps(value, separators=(",", ":"))


COMMON = dict(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
              num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5)
LATENT = dict(kv_lora_rank=4, q_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)
CONFIGS = {
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


def quantized(prefix, tensors):
    """The tensors of each of two experts' three matrices, all of them 32 x 32."""
    return {f"{prefix}.experts.{e}.{p}.{name}": t for e in range(2)
            for p in ("gate_proj", "up_proj", "down_proj") for name, t in tensors.items()}


# By configuration: the tensors of a matrix of 32 x 32.
QUANTIZED = {
    "gptq": {"qweight": ("I32", [4, 32]), "qzeros": ("I32", [1, 4]), "scales": ("F16", [1, 32]),
             "g_idx": ("I32", [32])},
    "awq": {"qweight": ("I32", [32, 4]), "qzeros": ("I32", [1, 4]), "scales": ("F16", [1, 32])},
    "packed": {"weight_packed": ("I32", [32, 4]), "weight_zero_point": ("I32", [4, 1]),
               "weight_scale": ("BF16", [32, 1])},
    "int8": {"weight": ("I8", [32, 32]), "weight_scale": ("BF16", [32, 1])},
    "nvfp4": {"weight_packed": ("U8", [32, 16]), "weight_scale": ("F8_E4M3", [32, 2]),
              "weight_global_scale": ("F32", [1])},
    "modelopt": {"weight": ("U8", [32, 16]), "weight_scale": ("F8_E4M3", [32, 2]),
                 "weight_scale_2": ("F32", [])},
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
    wide = {mlp + ".gate.weight": ("F32", [2, 32])}
    for form, tensors in QUANTIZED.items():
        yield form, form, {**wide, **quantized(mlp, tensors)}
    yield "mxfp4", "mxfp4", {**wide, mlp + ".experts.gate_up_proj_blocks": ("U8", [2, 64, 1, 16]),
                             mlp + ".experts.gate_up_proj_scales": ("U8", [2, 64, 1]),
                             mlp + ".experts.down_proj_blocks": ("U8", [2, 32, 1, 16]),
                             mlp + ".experts.down_proj_scales": ("U8", [2, 32, 1])}
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
    for name, config, tensors in models():
        write("model", name, dump(CONFIGS[config]).encode() + b"\0" + safetensors(tensors))
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
    if len(sys.argv) > 1:
        seeds_from_tools(os.path.abspath(sys.argv[1]))


if __name__ == "__main__":
    main()
