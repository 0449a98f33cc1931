#!/usr/bin/env python3
"""Writes a tiny random checkpoint for each supported architecture, with the logits of the reference library.

    pip install torch==2.6.0 transformers==4.57.1 && python3 make_fixtures.py

NAME/config.json, NAME/model.safetensors: a checkpoint as it is published (tensor names, bf16).
NAME/expected.safetensors: what transformers answers, in fp32 arithmetic over those bf16 weights. Of
each case: CASE.tokens [batch, length], CASE.prefill (how many of them are one prefill step; the rest
is decoded one by one with the key-value cache), CASE.logits [batch, length, vocabulary].

transformers has no deepseek v1 and no XVERSE-MoE (both are published with modelling code of their
own): those two are composed here from its modules, as compose_deepseek and compose_xverse say.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from transformers import (DeepseekV2Config, LlamaConfig, LlamaForCausalLM, MixtralConfig,
                          MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM, PhimoeConfig,
                          PhimoeForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2MoE
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

import fixtures

BASE = dict(fixtures.BASE, attn_implementation="eager")
FP8_MAX = 448.0


def qwen2_moe():
    config = Qwen2MoeConfig(**BASE, intermediate_size=48, moe_intermediate_size=32,
                            shared_expert_intermediate_size=48, num_experts=8, num_experts_per_tok=3,
                            norm_topk_prob=False, mlp_only_layers=[0], rope_theta=1e6)
    return config, Qwen2MoeForCausalLM(config), 3


def qwen3_moe():
    config = Qwen3MoeConfig(**BASE, head_dim=32, intermediate_size=48, moe_intermediate_size=32,
                            num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
                            decoder_sparse_step=1, rope_theta=1e6,
                            rope_scaling=dict(rope_type="yarn", factor=4.0,
                                              original_max_position_embeddings=16))
    return config, Qwen3MoeForCausalLM(config), 2


def qwen3_moe_fp8():
    # Not multiples of the 128 x 128 blocks, so that the ragged ones count. Published checkpoints of
    # this kind leave the head, the embedding and the routers in bf16.
    config = Qwen3MoeConfig(**{**BASE, "hidden_size": 160, "num_hidden_layers": 1}, head_dim=32,
                            intermediate_size=48, moe_intermediate_size=144, num_experts=4,
                            num_experts_per_tok=2, norm_topk_prob=True, rope_theta=1e6)
    return config, Qwen3MoeForCausalLM(config), 2


def mixtral():
    config = MixtralConfig(**BASE, intermediate_size=32, num_local_experts=8, num_experts_per_tok=2,
                           sliding_window=8)
    return config, MixtralForCausalLM(config), 2


def olmoe():
    config = OlmoeConfig(**BASE, intermediate_size=32, num_experts=16, num_experts_per_tok=4,
                         norm_topk_prob=False, clip_qkv=1.25)
    return config, OlmoeForCausalLM(config), 4


def phimoe():
    long_factor = [1.0 + 0.5 * i for i in range(8)]
    short_factor = [1.0 + 0.05 * i for i in range(8)]
    config = PhimoeConfig(**BASE, intermediate_size=32, num_local_experts=8, attention_bias=True,
                          lm_head_bias=True, rope_theta=1e4,
                          rope_scaling=dict(type="longrope", long_factor=long_factor,
                                            short_factor=short_factor, long_mscale=1.243163121016122,
                                            short_mscale=1.1, original_max_position_embeddings=16))
    return config, PhimoeForCausalLM(config), 2


def compose_deepseek():
    """Llama's decoder with the MoE block of DeepSeek-V2 (greedy, no scaling), from layer 1 on."""
    config = LlamaConfig(**{**BASE, "num_hidden_layers": 3}, intermediate_size=48)
    model = LlamaForCausalLM(config)
    moe = DeepseekV2Config(hidden_size=64, moe_intermediate_size=16, n_routed_experts=8,
                           n_shared_experts=2, num_experts_per_tok=3, topk_method="greedy",
                           routed_scaling_factor=1.0)
    for layer in model.model.layers[1:]:
        layer.mlp = DeepseekV2MoE(moe)
    extra = dict(model_type="deepseek", architectures=["DeepseekForCausalLM"], n_routed_experts=8,
                 n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=16,
                 first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=False,
                 scoring_func="softmax", aux_loss_alpha=0.001, seq_aux=True)
    return (config, extra), model, 3


class XverseMoe(nn.Module):
    def __init__(self, config, experts, top_k, shared):
        super().__init__()
        routed = Qwen3MoeConfig(hidden_size=config.hidden_size,
                                moe_intermediate_size=config.intermediate_size, num_experts=experts,
                                num_experts_per_tok=top_k, norm_topk_prob=True)
        block = Qwen3MoeSparseMoeBlock(routed)
        wide = LlamaConfig(hidden_size=config.hidden_size,
                           intermediate_size=config.intermediate_size * shared)
        self.router, self.experts, self.shared_experts = block.gate, block.experts, LlamaMLP(wide)
        self.block = [block]  # in a list: its parameters are registered above under their names

    def forward(self, x):
        return self.block[0](x)[0] + self.shared_experts(x)


def compose_xverse():
    """Llama's decoder; in every layer Qwen3-MoE's routing with renormalization and a shared expert
    without gate that is num_shared_experts times as wide."""
    config = LlamaConfig(**BASE, intermediate_size=16, rope_theta=5e5)
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp = XverseMoe(config, experts=8, top_k=2, shared=2)
    extra = dict(model_type="xverse", architectures=["XverseForCausalLM"], num_experts=8,
                 moe_top_k=2, num_shared_experts=2)
    return (config, extra), model, 2


def randomize(model, generator):
    """Weights that keep activations near 1 and routing decided; everything rounded to bf16."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight") or "layernorm.weight" in name:
                p.copy_(1 + 0.2 * torch.randn(p.shape, generator=generator))
            elif p.dim() == 1:
                p.copy_(0.2 * torch.randn(p.shape, generator=generator))
            else:
                scale = {True: 1.0, False: p.shape[-1] ** -0.5}["embed" in name]
                if name.endswith((".gate.weight", ".router.weight")):
                    scale *= 2
                p.copy_(scale * torch.randn(p.shape, generator=generator))
            p.copy_(p.to(torch.bfloat16).float())


def quantize_fp8(model):
    """128 x 128 blocks as DeepSeek-V3 publishes them. The model continues with the values that a
    reader gets: fp8 times scale, rounded to bf16. Returns the tensors to store."""
    stored = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "_proj" not in name:
                continue
            rows, cols = p.shape
            scale = torch.empty((rows + 127) // 128, (cols + 127) // 128)
            values = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
            for i in range(scale.shape[0]):
                for j in range(scale.shape[1]):
                    block = p[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128]
                    # A block of its own magnitude: a reader that takes a neighbour's scale is found.
                    block *= 2.0 ** (i - j)
                    scale[i, j] = block.abs().max() / FP8_MAX
                    quantized = (block / scale[i, j]).to(torch.float8_e4m3fn)
                    values[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128] = quantized
                    block.copy_((quantized.float() * scale[i, j]).to(torch.bfloat16).float())
            stored[name] = values
            stored[name + "_scale_inv"] = scale
    return stored


def smallest_margin(model, top_k, run):
    """Between the last chosen expert and the first that is not, in probability."""
    margins, hooks = [], []

    def note(module, inputs):
        p = F.linear(inputs[0].reshape(-1, inputs[0].shape[-1]), module.weight).softmax(-1)
        p = p.sort(-1, descending=True).values
        margins.append((p[:, top_k - 1] - p[:, top_k]).min().item())

    for name, module in model.named_modules():
        if name.endswith((".gate", ".router")):
            hooks.append(module.register_forward_pre_hook(note))
    result = run()
    for hook in hooks:
        hook.remove()
    return min(margins), result


def make(name, build):
    best = None
    for seed in fixtures.SEEDS:  # the seed whose routing is least a matter of rounding
        torch.manual_seed(0)
        config, model, top_k = build()
        generator = torch.Generator().manual_seed(seed)
        model.eval()
        randomize(model, generator)
        stored = quantize_fp8(model) if name.endswith("fp8") else {}
        margin, expected = smallest_margin(model, top_k,
                                           lambda: fixtures.expect(model, generator))
        if best is None or margin > best[0]:
            best = (margin, config, model, stored, expected)
    margin, config, model, stored, expected = best
    folder = fixtures.folder_of(name)
    tensors = {n: p.detach().to(torch.bfloat16) for n, p in model.named_parameters()}
    tensors.update(stored)
    config, extra = config if isinstance(config, tuple) else (config, {})
    fields = {**config.to_diff_dict(), "torch_dtype": "bfloat16", **extra}
    if stored:
        fields["quantization_config"] = dict(quant_method="fp8", fmt="e4m3",
                                             activation_scheme="dynamic",
                                             weight_block_size=[128, 128])
    for field in ("_attn_implementation", "attn_implementation", "dtype", "transformers_version"):
        fields.pop(field, None)
    fixtures.write_json(os.path.join(folder, "config.json"), fields)
    save_file({n: t.contiguous() for n, t in tensors.items()}, os.path.join(folder, "model.safetensors"),
              metadata={"format": "pt"})
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    spread = expected["short.logits"].std().item()
    print(f"{name}: margin {margin:.2e}, logits' standard deviation {spread:.2f}")


def rope_tables():
    """Frequencies and attention factor of every kind of RoPE scaling, from the reference library."""
    kinds = {
        "default": None,
        "linear": dict(rope_type="linear", factor=4.0),
        "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=256),
        "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512),
        "yarn_mscale": dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=512,
                            beta_fast=16.0, beta_slow=2.0, mscale=1.0, mscale_all_dim=0.7),
        "yarn_untruncated": dict(rope_type="yarn", factor=8.0, attention_factor=1.5, truncate=False,
                                 original_max_position_embeddings=300),
    }
    cases = []
    for name, scaling in kinds.items():
        config = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=2048,
                             rope_theta=1e5)
        config.rope_scaling = scaling
        kind = "default" if scaling is None else scaling["rope_type"]
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        cases.append(dict(name=name, head_dim=32, theta=1e5, max_position_embeddings=2048,
                          rope_scaling=scaling, attention_factor=float(factor),
                          inverse_frequencies=[float(x) for x in frequencies]))
    with open(os.path.join(fixtures.HERE, "rope.json"), "w") as f:
        json.dump(cases, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    rope_tables()
    for name, build in dict(qwen2_moe=qwen2_moe, qwen3_moe=qwen3_moe, qwen3_moe_fp8=qwen3_moe_fp8,
                            mixtral=mixtral, olmoe=olmoe, phimoe=phimoe, deepseek=compose_deepseek,
                            xverse=compose_xverse).items():
        make(name, build)
