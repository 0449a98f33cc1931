#!/usr/bin/env python3
"""Writes a Qwen2-MoE checkpoint of one file in bf16, such as examples/models/tiny-moe, as GGUF:
trained_gguf.py MODEL_DIR FILE. Weights stay as they are; routers, norms and biases become F32.
"""
import array
import json
import pathlib
import struct
import sys

from make_gguf import ARRAY, F32, FLOAT, I32, STRING, U32, write_file

BF16 = 30  # ggml's number
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
         "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp"}


class Checkpoint:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        data = (folder / "model.safetensors").read_bytes()
        begin = 8 + struct.unpack_from("<Q", data)[0]
        self.header, self.data = json.loads(data[8:begin]), data[begin:]
        self.header.pop("__metadata__", None)

    def read(self, name):
        """(shape as ggml has it, bytes)"""
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        return tuple(reversed(entry["shape"])), self.data[begin:end]


def tensor(name, shape, data):
    """As llama.cpp wants it: matrices of layers in bf16, the rest in F32."""
    if "ffn_gate_inp_shexp" in name:
        shape = shape[:1]
    if len(shape) > 1 and "ffn_gate_inp" not in name:
        return name, shape, BF16, data
    return name, shape, F32, array.array("I", [bits << 16 for bits in array.array("H", data)]).tobytes()


def tensors(checkpoint):
    config = checkpoint.config
    yield tensor("token_embd.weight", *checkpoint.read("model.embed_tokens.weight"))
    yield tensor("output.weight", *checkpoint.read("model.embed_tokens.weight"))  # tied
    yield tensor("output_norm.weight", *checkpoint.read("model.norm.weight"))
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in NAMES.items():
            for kind in ("weight", "bias"):
                name = f"model.layers.{layer}.{theirs}.{kind}"
                if name in checkpoint.header:
                    yield tensor(f"blk.{layer}.{ours}.{kind}", *checkpoint.read(name))
        for part in ("gate", "up", "down"):
            parts = [checkpoint.read(f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight")
                     for expert in range(config["num_experts"])]
            yield (f"blk.{layer}.ffn_{part}_exps.weight", (*parts[0][0], len(parts)), BF16,
                   b"".join(data for _, data in parts))


def values(config, tokenizer):
    sizes = {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
             "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
             "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
             "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
             "expert_feed_forward_length": "moe_intermediate_size",
             "expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    kinds = [3 if i in special else 1 for i in range(len(tokens))]  # control, normal
    merges = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    return [("general.architecture", STRING, "qwen2moe"),
            *((f"qwen2moe.{ours}", U32, config[theirs]) for ours, theirs in sizes.items()),
            ("qwen2moe.attention.layer_norm_rms_epsilon", FLOAT, config["rms_norm_eps"]),
            ("qwen2moe.rope.freq_base", FLOAT, config["rope_theta"]),
            ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "qwen2"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
            ("tokenizer.ggml.merges", ARRAY, (STRING, merges)),
            ("tokenizer.ggml.eos_token_id", U32, config["eos_token_id"])]


def main():
    folder, out = pathlib.Path(sys.argv[1]), sys.argv[2]
    checkpoint = Checkpoint(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    write_file(out, values(checkpoint.config, tokenizer), list(tensors(checkpoint)))


if __name__ == "__main__":
    main()
