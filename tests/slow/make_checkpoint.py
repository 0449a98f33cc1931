#!/usr/bin/env python3
"""Writes a checkpoint of Qwen3-MoE's architecture with random bf16 weights, as transformers 5 saves them:
all experts of a layer in one tensor. Tokenizer and vocabulary are the bundled model's, with ChatML's marks.
Needs nothing but Python.

    make_checkpoint.py OUT --layers 4 --hidden 512 --intermediate 192 --experts 128 --top-k 8
"""
import argparse
import json
import os
import pathlib
import random

TINY = pathlib.Path(__file__).resolve().parents[2] / "examples/models/tiny-moe"
SHARD = 1 << 30
# The high byte of a bf16 weight: either sign, magnitudes from 2^-7 to 2^-5.
HIGH = bytes((0x3C if b & 1 else 0xBC) + (0 if b & 2 else 1 if b & 4 else 0) for b in range(256))


def weights(count, generator):
    """`count` random bf16 numbers."""
    data = bytearray(2 * count)
    noise = generator.randbytes(2 * count)
    data[0::2] = noise[0::2]
    data[1::2] = noise[1::2].translate(HIGH)
    return bytes(data)


def tensors(a):
    """(name, shape, filled with) of every tensor, in file order."""
    kv, head = a.heads // 4, a.head_dim
    yield "model.embed_tokens.weight", [a.vocab, a.hidden], "random"
    for layer in range(a.layers):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", [a.hidden], "one"
        yield p + "self_attn.q_proj.weight", [a.heads * head, a.hidden], "random"
        yield p + "self_attn.k_proj.weight", [kv * head, a.hidden], "random"
        yield p + "self_attn.v_proj.weight", [kv * head, a.hidden], "random"
        yield p + "self_attn.o_proj.weight", [a.hidden, a.heads * head], "random"
        yield p + "self_attn.q_norm.weight", [head], "one"
        yield p + "self_attn.k_norm.weight", [head], "one"
        yield p + "post_attention_layernorm.weight", [a.hidden], "one"
        yield p + "mlp.gate.weight", [a.experts, a.hidden], "random"
        yield p + "mlp.experts.gate_up_proj", [a.experts, 2 * a.intermediate, a.hidden], "random"
        yield p + "mlp.experts.down_proj", [a.experts, a.hidden, a.intermediate], "random"
    yield "model.norm.weight", [a.hidden], "one"
    yield "lm_head.weight", [a.vocab, a.hidden], "random"


def size(shape):
    count = 2
    for n in shape:
        count *= n
    return count


def write_shards(out, entries, generator):
    shards, used = [[]], 0
    for entry in entries:
        if shards[-1] and used + size(entry[1]) > SHARD:
            shards.append([])
            used = 0
        shards[-1].append(entry)
        used += size(entry[1])
    index = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, offset = {}, 0
        for tensor, shape, _ in shard:
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size(shape)]}
            offset += size(shape)
            index[tensor] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(out / name, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, shape, fill in shard:
                left = size(shape)
                while left > 0:
                    part = min(left, 1 << 24)
                    file.write(b"\x80\x3f" * (part // 2) if fill == "one" else weights(part // 2, generator))
                    left -= part
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_tokenizer(out, vocab):
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    for i, mark in enumerate(["<|im_start|>", "<|im_end|>"]):
        tokenizer["added_tokens"].append(
            {"id": vocab + i, "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True})
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    (out / "tokenizer_config.json").write_text("{}")
    (out / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{{ '<|im_start|>assistant\\n' }}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--intermediate", type=int, default=192)
    p.add_argument("--experts", type=int, default=128)
    p.add_argument("--top-k", type=int, default=8)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--vocab", type=int, help="tokens; those behind the tokenizer's are never in a text")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    base = json.loads((TINY / "config.json").read_text())["vocab_size"]
    a.vocab = base + 64 if a.vocab is None else a.vocab
    if a.vocab < base + 2:
        p.error(f"--vocab is {a.vocab}, and the tokenizer has {base + 2} tokens")
    a.out.mkdir(parents=True)
    write_tokenizer(a.out, base)
    (a.out / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": a.vocab,
        "hidden_size": a.hidden, "intermediate_size": 2 * a.hidden, "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads, "num_key_value_heads": a.heads // 4, "head_dim": a.head_dim,
        "max_position_embeddings": 40960, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "num_experts": a.experts,
        "num_experts_per_tok": a.top_k, "moe_intermediate_size": a.intermediate, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
        "eos_token_id": base + 1, "torch_dtype": "bfloat16", "transformers_version": "5.0.0"}, indent=1))
    write_shards(a.out, list(tensors(a)), random.Random(a.seed))


if __name__ == "__main__":
    main()
