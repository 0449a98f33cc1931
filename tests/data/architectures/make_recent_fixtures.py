#!/usr/bin/env python3
"""The same as make_fixtures.py, for the families whose reference is a newer version of the library.

    pip install torch==2.15.0 transformers==5.24.0 && python3 make_recent_fixtures.py [NAME...]

NAME/config.json has the fields that published checkpoints of the family have; the reference model is
built from it, so that the library and libmoert read the same file. NAME/config.transformers5.json is
what the library writes for the same model. NAME/model.safetensors: the tensors as save_pretrained
names them, in bf16 (constants that are published in f32 in f32).
"""
import json
import os
import re
import sys
import tempfile
import unittest.mock

import torch
from safetensors.torch import load_file, save_file
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV32Config,
                          DeepseekV32ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM,
                          DeepseekV4Config, DeepseekV4ForCausalLM,
                          Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, ExaoneMoeConfig,
                          ExaoneMoeForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig, Glm4MoeConfig,
                          Glm4MoeForCausalLM, Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM,
                          GlmMoeDsaConfig, GlmMoeDsaForCausalLM, GptOssConfig, GptOssForCausalLM,
                          HunYuanMoEV1Config, HunYuanMoEV1ForCausalLM, HYV3Config, HYV3ForCausalLM,
                          Llama4ForCausalLM, Llama4TextConfig, MiMoV2FlashConfig,
                          MiMoV2FlashForCausalLM, MiniMaxM2Config, MiniMaxM2ForCausalLM,
                          MiniMaxM3VLTextConfig, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3NextConfig,
                          Qwen3NextForCausalLM, Qwen3VLMoeConfig,
                          Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeTextConfig, SolarOpenConfig,
                          SolarOpenForCausalLM)
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLForCausalLM

import fixtures

BASE = dict(fixtures.BASE, hidden_act="silu", torch_dtype="bfloat16")
LATENT = dict(num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
              v_head_dim=16, attention_bias=False)
PUBLISHED_F32 = ("e_score_correction_bias", "A_log", "dt_bias", "linear_attn.norm.weight",
                 "gate.bias", "attn_sink", ".ape")


def yarn(**fields):
    return dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32,
                beta_slow=1, **fields)


def deepseek_v2():
    return DeepseekV2ForCausalLM, DeepseekV2Config, dict(
        BASE, **LATENT, model_type="deepseek_v2", architectures=["DeepseekV2ForCausalLM"],
        num_hidden_layers=3, q_lora_rank=24, intermediate_size=48, moe_intermediate_size=16,
        n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=4, first_k_dense_replace=1,
        moe_layer_freq=1, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        routed_scaling_factor=16.0 / 4, norm_topk_prob=False, scoring_func="softmax",
        rms_norm_eps=1e-6, rope_theta=10000,
        rope_scaling=yarn(mscale=0.707, mscale_all_dim=0.707))


def deepseek_v2_lite():
    return DeepseekV2ForCausalLM, DeepseekV2Config, dict(
        BASE, **LATENT, model_type="deepseek_v2", architectures=["DeepseekV2ForCausalLM"],
        q_lora_rank=None, intermediate_size=48, moe_intermediate_size=16, n_routed_experts=8,
        n_shared_experts=2, num_experts_per_tok=3, first_k_dense_replace=1, moe_layer_freq=1,
        topk_method="greedy", n_group=1, topk_group=1, routed_scaling_factor=1.0,
        norm_topk_prob=False, scoring_func="softmax", rms_norm_eps=1e-6, rope_theta=10000)


def deepseek_v3():
    return DeepseekV3ForCausalLM, DeepseekV3Config, dict(
        BASE, **LATENT, model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"],
        num_hidden_layers=3, q_lora_rank=24, intermediate_size=48, moe_intermediate_size=16,
        n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4, first_k_dense_replace=1,
        moe_layer_freq=1, topk_method="noaux_tc", n_group=4, topk_group=2,
        routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func="sigmoid", rms_norm_eps=1e-6,
        rope_theta=10000, rope_scaling=yarn(mscale=1.0, mscale_all_dim=0.8))


def deepseek_v3_gptq():
    """Every linear layer but the routers in int4, a scale and a zero a row."""
    model, config, fields = deepseek_v3()
    return model, config, dict(fields, num_hidden_layers=2, quantization_config=dict(
        quant_method="gptq", bits=4, group_size=-1, sym=False, desc_act=False,
        checkpoint_format="gptq"))


def deepseek_v32():
    """Queries see 6 positions, fewer than either case's prompt has."""
    return DeepseekV32ForCausalLM, DeepseekV32Config, dict(
        BASE, **LATENT, model_type="deepseek_v32", architectures=["DeepseekV32ForCausalLM"],
        num_hidden_layers=3, q_lora_rank=24, index_n_heads=12, index_head_dim=16, index_topk=6,
        intermediate_size=48, moe_intermediate_size=16, n_routed_experts=16, n_shared_experts=1,
        num_experts_per_tok=4, first_k_dense_replace=1, moe_layer_freq=1, topk_method="noaux_tc",
        n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
        scoring_func="sigmoid", rms_norm_eps=1e-6, rope_theta=10000,
        rope_scaling=yarn(mscale=1.0, mscale_all_dim=1.0))


def deepseek_v4():
    """A layer of each kind: windows alone, entries of 4 positions of which rows see 3, and entries of
    8 that rows see all. The first layer's experts are chosen by token ids."""
    return DeepseekV4ForCausalLM, DeepseekV4Config, dict(
        BASE, model_type="deepseek_v4", architectures=["DeepseekV4ForCausalLM"],
        num_hidden_layers=3, num_key_value_heads=1, head_dim=32, qk_rope_head_dim=8, q_lora_rank=24,
        o_groups=2, o_lora_rank=16, attention_bias=False, sliding_window=5,
        compress_ratios=[0, 4, 128, 0],
        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8),
        index_n_heads=12, index_head_dim=16, index_topk=3, hc_mult=3, hc_sinkhorn_iters=4,
        hc_eps=1e-6, moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=3, num_hash_layers=1, topk_method="noaux_tc", norm_topk_prob=True,
        routed_scaling_factor=1.5, scoring_func="sqrtsoftplus", swiglu_limit=1.5,
        rms_norm_eps=1e-6, rope_theta=10000, compress_rope_theta=160000,
        rope_scaling=dict(type="yarn", factor=16, original_max_position_embeddings=16,
                          beta_fast=32, beta_slow=1))


def glm_moe_dsa():
    """Layers 1 and 3 see the positions that the layer before has chosen."""
    return GlmMoeDsaForCausalLM, GlmMoeDsaConfig, dict(
        BASE, **LATENT, model_type="glm_moe_dsa", architectures=["GlmMoeDsaForCausalLM"],
        num_hidden_layers=4, q_lora_rank=24, qk_head_dim=24, head_dim=8, index_n_heads=12,
        index_head_dim=16, index_topk=6, indexer_rope_interleave=True, index_topk_freq=2,
        index_skip_topk_offset=1, intermediate_size=48, moe_intermediate_size=16,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
        moe_layer_freq=1, topk_method="noaux_tc", n_group=1, topk_group=1,
        routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func="sigmoid", rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=1000000))


def glm4_moe():
    return Glm4MoeForCausalLM, Glm4MoeConfig, dict(
        BASE, model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"], head_dim=32,
        attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, rope_theta=1000000,
        rope_scaling=None, intermediate_size=48, moe_intermediate_size=16, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1, n_group=1, topk_group=1,
        routed_scaling_factor=1.5, norm_topk_prob=True, rms_norm_eps=1e-5)


def ernie4_5_moe():
    return Ernie4_5_MoeForCausalLM, Ernie4_5_MoeConfig, dict(
        BASE, model_type="ernie4_5_moe", architectures=["Ernie4_5_MoeForCausalLM"], use_bias=False,
        rope_theta=500000, intermediate_size=48, moe_intermediate_size=16, moe_num_experts=8, moe_k=3,
        moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=1,
        moe_layer_interval=1, rms_norm_eps=1e-5, **{"tie_word_embeddings": True})


def minimax_m2():
    return MiniMaxM2ForCausalLM, MiniMaxM2Config, dict(
        BASE, model_type="minimax_m2", architectures=["MiniMaxM2ForCausalLM"], head_dim=32,
        rotary_dim=16, rope_theta=5000000, use_qk_norm=True, qk_norm_type="per_layer",
        intermediate_size=16, num_local_experts=8, num_experts_per_tok=3, scoring_func="sigmoid",
        use_routing_bias=True, shared_intermediate_size=0, rms_norm_eps=1e-6)


def minimax_m3_vl():
    """The text half, with the names of published checkpoints. Rows see 3 blocks of 3 positions."""
    return MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig, dict(
        BASE, model_type="minimax_m3_vl_text", num_hidden_layers=3, head_dim=32, rotary_dim=16,
        partial_rotary_factor=0.5, rope_theta=5000000, use_gemma_norm=True, use_qk_norm=True,
        qk_norm_type="per_head", hidden_act="swigluoai", swiglu_alpha=1.702, swiglu_limit=2.0,
        intermediate_size=16, dense_intermediate_size=48, shared_intermediate_size=16,
        n_shared_experts=1, num_local_experts=8, num_experts_per_tok=3, scoring_func="sigmoid",
        use_routing_bias=True, routed_scaling_factor=2.0, moe_layer_freq=[0, 1, 1],
        sparse_attention_config=dict(
            use_sparse_attention=True, sparse_num_index_heads=2, sparse_index_dim=24,
            sparse_block_size=3, sparse_topk_blocks=3, sparse_init_block=0, sparse_local_block=1,
            sparse_score_type="max", sparse_attention_freq=[0, 1, 1],
            sparse_disable_index_value=[0, 1, 1]), rms_norm_eps=1e-6)


def qwen3_next():
    return Qwen3NextForCausalLM, Qwen3NextConfig, dict(
        BASE, model_type="qwen3_next", architectures=["Qwen3NextForCausalLM"],
        full_attention_interval=2, head_dim=32, partial_rotary_factor=0.25, rope_theta=10000000,
        rope_scaling=None, attention_bias=False, linear_conv_kernel_dim=4, linear_key_head_dim=8,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
        decoder_sparse_step=1, mlp_only_layers=[], intermediate_size=48, moe_intermediate_size=16,
        shared_expert_intermediate_size=32, num_experts=8, num_experts_per_tok=3,
        norm_topk_prob=True, rms_norm_eps=1e-6)


def gpt_oss():
    """Its experts in MXFP4, as published."""
    return GptOssForCausalLM, GptOssConfig, dict(
        BASE, model_type="gpt_oss", architectures=["GptOssForCausalLM"], num_hidden_layers=2,
        head_dim=16, attention_bias=True, sliding_window=8, initial_context_length=16,
        layer_types=["sliding_attention", "full_attention"], intermediate_size=32,
        num_local_experts=8, num_experts_per_tok=3, experts_per_token=3, swiglu_limit=7.0,
        rope_theta=150000,
        rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                          original_max_position_embeddings=16, truncate=False),
        rms_norm_eps=1e-5, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head"]))


def gpt_oss_bf16():
    model, config, fields = gpt_oss()
    fields.pop("quantization_config")
    return model, config, dict(fields, num_hidden_layers=1, layer_types=["sliding_attention"])


def llama4():
    """The text half of a checkpoint for text and pictures: fields and tensors are nested."""
    return Llama4ForCausalLM, Llama4TextConfig, dict(
        BASE, model_type="llama4_text", num_hidden_layers=3, head_dim=16, attention_bias=False,
        intermediate_size=16, intermediate_size_mlp=48, num_local_experts=8, num_experts_per_tok=2,
        interleave_moe_layer_step=1, moe_layers=[0, 2], no_rope_layers=[1, 1, 0],
        attention_chunk_size=8, use_qk_norm=True, attn_temperature_tuning=True, floor_scale=4,
        attn_scale=0.1, rope_theta=500000,
        rope_scaling=dict(rope_type="llama3", factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
                          original_max_position_embeddings=16), rms_norm_eps=1e-5)


def hunyuan_v1_moe():
    """Its file has a number for each layer where the library wants one for all."""
    return HunYuanMoEV1ForCausalLM, HunYuanMoEV1Config, dict(
        BASE, model_type="hunyuan_v1_moe", architectures=["HunYuanMoEV1ForCausalLM"], head_dim=32,
        attention_bias=False, use_qk_norm=True, use_cla=False, use_mixed_mlp_moe=True,
        intermediate_size=16, moe_intermediate_size=[16, 16], num_experts=8, moe_topk=[3, 3],
        num_shared_expert=[1, 1], rope_theta=10000,
        rope_scaling=dict(type="dynamic", alpha=1000.0, factor=1.0), rms_norm_eps=1e-5)


def glm4_moe_lite():
    return Glm4MoeLiteForCausalLM, Glm4MoeLiteConfig, dict(
        BASE, **LATENT, model_type="glm4_moe_lite", architectures=["Glm4MoeLiteForCausalLM"],
        q_lora_rank=24, intermediate_size=48, moe_intermediate_size=16, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1, n_group=1, topk_group=1,
        topk_method="noaux_tc", routed_scaling_factor=1.8, norm_topk_prob=True, rms_norm_eps=1e-5,
        rope_theta=1000000, rope_scaling=None, partial_rotary_factor=1.0, num_nextn_predict_layers=1)


def hy_v3():
    return HYV3ForCausalLM, HYV3Config, dict(
        BASE, model_type="hy_v3", architectures=["HYV3ForCausalLM"], head_dim=32,
        attention_bias=False, intermediate_size=48, moe_intermediate_size=16, num_experts=8,
        num_experts_per_tok=3, num_shared_experts=1, first_k_dense_replace=1, route_norm=True,
        router_scaling_factor=2.5, moe_router_use_sigmoid=True, moe_router_enable_expert_bias=True,
        rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=11158840.0))


def exaone_moe():
    return ExaoneMoeForCausalLM, ExaoneMoeConfig, dict(
        BASE, model_type="exaone_moe", architectures=["ExaoneMoeForCausalLM"], num_hidden_layers=3,
        head_dim=32, sliding_window=8, sliding_window_pattern="LGL",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        intermediate_size=48, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=3,
        num_shared_experts=1, first_k_dense_replace=1, is_moe_layer=[False, True, True], n_group=1,
        topk_group=1, topk_method="noaux_tc", scoring_func="sigmoid", routed_scaling_factor=2.5,
        norm_topk_prob=True, rms_norm_eps=1e-5, num_nextn_predict_layers=1,
        rope_parameters=dict(rope_type="default", rope_theta=1000000))


def mimo_v2_flash():
    """Published files name layers with windows otherwise than the library, which knows their widths."""
    return MiMoV2FlashForCausalLM, MiMoV2FlashConfig, dict(
        BASE, model_type="mimo_v2_flash", architectures=["MiMoV2FlashForCausalLM"],
        num_hidden_layers=3, num_key_value_heads=1, head_dim=48, v_head_dim=32, attention_bias=False,
        hybrid_layer_pattern=[0, 1, 1], hybrid_block_size=None, sliding_window=7,
        sliding_window_size=7, attention_chunk_size=7, swa_num_attention_heads=4,
        swa_num_key_value_heads=2, swa_head_dim=48, swa_v_head_dim=32, swa_rope_theta=10000,
        rope_theta=5000000, partial_rotary_factor=0.334, attention_value_scale=0.707,
        add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, intermediate_size=48,
        moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=None, num_experts_per_tok=3,
        moe_layer_freq=[0, 1, 1], n_group=1, topk_group=1, topk_method="noaux_tc",
        scoring_func="sigmoid", routed_scaling_factor=None, norm_topk_prob=True,
        layernorm_epsilon=1e-5)


def gemma4():
    """The text half of a checkpoint for text and pictures. The library writes sizes of heads a layer."""
    return Gemma4ForCausalLM, Gemma4TextConfig, dict(
        {k: v for k, v in BASE.items() if k != "hidden_act"}, model_type="gemma4_text",
        num_hidden_layers=3, head_dim=16, global_head_dim=32, num_global_key_value_heads=1,
        attention_k_eq_v=True, attention_bias=False, sliding_window=8,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        hidden_activation="gelu_pytorch_tanh", intermediate_size=48, enable_moe_block=True,
        num_experts=8, top_k_experts=3, moe_intermediate_size=16, hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=128, num_kv_shared_layers=0, use_double_wide_mlp=False,
        use_bidirectional_attention="vision", final_logit_softcapping=5.0, rms_norm_eps=1e-6,
        rope_parameters=dict(
            full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25,
                                rope_theta=1000000.0),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0)),
        **{"tie_word_embeddings": True})


def solar_open():
    return SolarOpenForCausalLM, SolarOpenConfig, dict(
        BASE, model_type="solar_open", architectures=["SolarOpenForCausalLM"], head_dim=16,
        moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3,
        n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True, rms_norm_eps=1e-5,
        rope_theta=1000000, partial_rotary_factor=1.0)


def qwen3_5_moe():
    """The text half of a checkpoint for text and pictures, whose names lie below language_model."""
    return Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, dict(
        BASE, model_type="qwen3_5_moe_text", full_attention_interval=2, head_dim=32,
        attention_bias=False, attn_output_gate=True, linear_conv_kernel_dim=4, linear_key_head_dim=8,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
        mamba_ssm_dtype="float32", moe_intermediate_size=16, shared_expert_intermediate_size=32,
        num_experts=8, num_experts_per_tok=3, rms_norm_eps=1e-6,
        rope_parameters=dict(rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25,
                             mrope_interleaved=True, mrope_section=[2, 1, 1]))


def qwen3_vl_moe():
    """The same; the reference is a model for pictures, too, that sees none."""
    return Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeTextConfig, dict(
        BASE, model_type="qwen3_vl_moe_text", head_dim=32, attention_bias=False,
        decoder_sparse_step=1, mlp_only_layers=[], intermediate_size=48, moe_intermediate_size=16,
        num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, rms_norm_eps=1e-6,
        rope_theta=5000000,
        rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[8, 4, 4]))


FAMILIES = [deepseek_v2, deepseek_v2_lite, deepseek_v3, deepseek_v3_gptq, deepseek_v32, deepseek_v4,
            glm_moe_dsa, glm4_moe, ernie4_5_moe, minimax_m2, qwen3_next, gpt_oss, gpt_oss_bf16, llama4,
            hunyuan_v1_moe, glm4_moe_lite, hy_v3, solar_open, qwen3_5_moe, qwen3_vl_moe, exaone_moe,
            mimo_v2_flash, gemma4, minimax_m3_vl]
NESTED = {"gemma4": "Gemma4ForConditionalGeneration",
          "llama4": "Llama4ForConditionalGeneration",
          "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration",
          "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
          "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration"}


def scale_of(name, p, type_name, tied):
    """The standard deviation of a weight, such that activations stay near 1."""
    if "embed" in name and not tied:
        return 1.0
    if "conv1d" in name:
        return 0.7
    if name.endswith(".router.proj.weight"):  # of an input that is normalized and divided by its root
        return 2.0
    if name.endswith((".gate.weight", ".gate.wg.weight", ".router.weight")):
        return 2 * p.shape[-1] ** -0.5
    if "e_score_correction_bias" in name:
        return 0.1
    if name.endswith("_bias"):
        return 0.2
    if p.dim() == 3 and type_name.startswith(("GptOss", "Llama4")):  # stored as [in, out]
        return p.shape[-2] ** -0.5
    return p.shape[-1] ** -0.5


def randomize(model, generator):
    """Everything rounded to bf16."""
    around_zero = type(model).__name__.startswith(("Qwen3Next", "Qwen3_5Moe", "MiniMaxM3"))
    tensors = list(model.named_parameters()) + [
        (n, b) for n, b in model.named_buffers()
        if n.endswith(("e_score_correction_bias", "layer_scalar", "tid2eid"))]
    with torch.no_grad():
        for name, p in tensors:
            if name.endswith("tid2eid"):
                experts = model.config.n_routed_experts
                p.copy_(torch.rand(p.shape[0], experts, generator=generator).argsort(1)[:, :p.shape[1]])
                continue
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("A_log"):
                p.copy_(noise.abs().add(0.2).log())
            elif "norm" in name and name.endswith("weight"):
                zero = around_zero and "linear_attn" not in name
                p.copy_((0 if zero else 1) + 0.2 * noise)
                if name.endswith("q_norm.weight") and type(model).__name__.startswith("Gemma4"):
                    p.mul_(p.shape[0] ** -0.5)  # nothing else divides its scores
            elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale", "hc.scale",
                                "hc_scale")):
                p.copy_(1 + 0.2 * noise)
            elif p.dim() == 1 and "e_score" not in name:
                p.copy_(0.2 * noise)
            else:
                scale = scale_of(name, p, type(model).__name__, model.config.get_text_config().tie_word_embeddings)
                p.copy_(scale * noise)
            p.copy_(p.to(torch.bfloat16).float())


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def quantize_mxfp4(model):
    """Blocks of 32 inputs, each with a power of two. The model continues with what a reader gets.
    Returns the tensors to store."""
    stored = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                continue
            w = p.transpose(1, 2)  # [experts, out, in]
            blocks = w.reshape(*w.shape[:2], -1, 32)
            exponent = torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 2
            scaled = blocks / 2.0 ** exponent
            code = (scaled.abs().unsqueeze(-1) - FP4).abs().argmin(-1)
            p.copy_((FP4[code] * scaled.sign() * 2.0 ** exponent).reshape(w.shape).transpose(1, 2))
            code = code + 8 * (scaled < 0)
            stored[name + "_blocks"] = (code[..., 0::2] + 16 * code[..., 1::2]).to(torch.uint8)
            stored[name + "_scales"] = (exponent.squeeze(-1) + 127).to(torch.uint8)
    return stored


def gptq(w):
    """A matrix [rows, k] as GPTQ stores it, and the values of its codes."""
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    scale = ((high - low) / 15).to(torch.float16)
    zero = torch.round(-low / scale.float()).clamp(1, 15)
    code = (torch.round(w / scale.float()) + zero).clamp(0, 15)

    def words(nibbles):  # eight a word, along the first dimension
        shifts = torch.arange(0, 32, 4, dtype=torch.int64).view(1, 8, 1)
        packed = (nibbles.long().reshape(-1, 8, nibbles.shape[1]) << shifts).sum(1)
        return torch.where(packed >= 2 ** 31, packed - 2 ** 32, packed).to(torch.int32)

    stored = {"qweight": words(code.T), "qzeros": words(zero - 1).T, "scales": scale.T,
              "g_idx": torch.zeros(w.shape[1], dtype=torch.int32)}
    return stored, (code - zero) * scale.float()


def quantize_gptq(model):
    """The tensors to store. The model continues with what a reader gets: values rounded to bf16."""
    stored = {}
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        path = os.path.join(saved, "model.safetensors")
        tensors = load_file(path)
        for name in tensors:
            if not name.endswith(("_proj.weight", "_mqa.weight", "lm_head.weight")):
                continue
            parts, values = gptq(tensors[name])
            tensors[name] = values.to(torch.bfloat16).float()
            stored.update({f"{name[:-len('.weight')]}.{n}": t for n, t in parts.items()})
        save_file(tensors, path, metadata={"format": "pt"})
        read = type(model).from_pretrained(saved, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    return stored


def quantize(model, fields):
    config = fields.get("quantization_config")
    if config is None:
        return {}
    return quantize_gptq(model) if config["quant_method"] == "gptq" else quantize_mxfp4(model)


def watch_indexers(model, count):
    """A context that counts the choices of indexers whose last score is nearly the next one's.
    Equal ones, as of positions where no head has any, are a matter of the program."""
    real = torch.Tensor.topk
    chosen = getattr(model.config, "index_topk", getattr(model.config, "index_topk_blocks", -1))

    def topk(scores, k, *args, **kwargs):
        if k == chosen and scores.dim() >= 3 and scores.shape[-1] > k:
            last, other = real(scores, k + 1).values[..., -2:].unbind(-1)
            gap = torch.where(other > -1e30, last - other, 1.0)
            count[0] += int((gap < 0.04).sum()) + 1000 * int((gap < 1e-4).sum())
        return real(scores, k, *args, **kwargs)

    return unittest.mock.patch.object(torch.Tensor, "topk", topk)


def tipped(model, run):
    """How many routing decisions change when the routers' inputs change by one part in 100, and how
    many indexers' might."""
    count, hooks = [0], []

    def chosen(out):
        for t in out:
            if t.dtype == torch.int64:
                return t.sort(-1).values
        scores = out[0]  # Llama 4: sigmoids, 0 where not chosen
        return (scores > 0).nonzero()

    def note(module, args, out):
        if count[0] < 0:
            return
        saved, count[0] = count[0], -1
        noise = 0.01 * torch.randn(args[0].shape, generator=torch.Generator().manual_seed(1))
        other = module(args[0] + noise, *args[1:])
        a, b = chosen(out), chosen(other)
        count[0] = saved + (int((a != b).sum()) if a.shape == b.shape else 1000)

    for module in model.modules():
        if type(module).__name__.endswith(("Router", "Gate")):
            hooks.append(module.register_forward_hook(note))
    assert hooks
    with watch_indexers(model, count):
        result = run()
    for hook in hooks:
        hook.remove()
    return count[0], result


def nested(family, name):
    """What a tensor of the text half is called in a published checkpoint."""
    if family in ("llama4", "minimax_m3_vl"):
        return "language_model." + name
    return re.sub(r"^model\.(language_model\.)?", "model.language_model.", name)


def as_published(tensors):
    """MiniMax-M3's tensors under the names, and as apart, as published checkpoints have them."""
    apart = {}
    for name, t in tensors.items():
        name = name.replace(".indexer.", ".index_")
        name = re.sub(r"\.mlp\.(gate|experts|shared_experts)\.", r".block_sparse_moe.\1.", name)
        name = name.replace("gate.e_score", "e_score")
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                for part, half in zip(("w1", "w3"), both.chunk(2)):
                    apart[name.replace("gate_up_proj", f"{e}.{part}.weight")] = half
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(t):
                apart[name.replace("down_proj", f"{e}.w2.weight")] = down
        elif name.endswith("gate_up_proj.weight"):
            for part, half in zip(("gate", "up"), t.chunk(2)):
                apart[name.replace("gate_up", part)] = half
        else:
            apart[name] = t
    return apart


def deepseek_names(tensors):
    """DeepSeek-V4's tensors as published checkpoints call them, made of save_pretrained's names."""
    renamed = {}
    for name, t in tensors.items():
        name = name.removeprefix("model.").replace("embed_tokens", "embed")
        name = name.replace("hc_head.hc_", "hc_head_").replace("attn.norm.", "attn.kv_norm.")
        renamed[name] = t
    return renamed


def whole(config_class, config):
    """The configuration of a model for pictures, too, as small as can be."""
    if config_class is not Qwen3VLMoeTextConfig:
        return config
    vision = dict(depth=1, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=64,
                  deepstack_visual_indexes=[0])
    return Qwen3VLMoeConfig(text_config=config.to_dict(), vision_config=vision)


def make(build):
    name, best = build.__name__, None
    for seed in fixtures.SEEDS:  # the seed whose routing is least a matter of rounding
        torch.manual_seed(0)
        model_class, config_class, fields = build()
        config = config_class(**{k: v for k, v in fields.items()
                                 if k not in ("model_type", "quantization_config")})
        config = whole(config_class, config)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        model = model_class(config).float().eval()
        generator = torch.Generator().manual_seed(seed)
        randomize(model, generator)
        packed = quantize(model, fields)
        changed, expected = tipped(model, lambda: fixtures.expect(model, generator))
        if best is None or changed < best[0]:
            best = (changed, model, fields, packed, expected)
    changed, model, fields, packed, expected = best
    folder = fixtures.folder_of(name)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        tensors = load_file(os.path.join(saved, "model.safetensors"))
        with open(os.path.join(saved, "config.json")) as f:
            written = json.load(f)
    written.pop("transformers_version", None)
    tensors = {n: t for n, t in tensors.items()
               if n + "_blocks" not in packed and n.replace(".weight", ".qweight") not in packed}
    if packed:
        written["quantization_config"] = fields["quantization_config"]
    if name == "minimax_m3_vl":
        tensors = as_published(tensors)
    if name == "deepseek_v4":
        tensors = deepseek_names(tensors)
    if name in NESTED:
        fields = dict(model_type=name, architectures=[NESTED[name]], text_config=fields)
        tensors = {nested(name, n): t for n, t in tensors.items() if "visual." not in n}
    for path, content in (("config.json", fields), ("config.transformers5.json", written)):
        fixtures.write_json(os.path.join(folder, path), content)
    stored = {n: (t if n.endswith(PUBLISHED_F32) or "hc_" in n or t.dtype == torch.int64
                  else t.to(torch.bfloat16)).contiguous() for n, t in tensors.items()}
    stored.update({n: t.contiguous() for n, t in packed.items()})
    save_file(stored, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    spread = expected["short.logits"].std().item()
    print(f"{name}: {changed} decisions near a tie, logits' standard deviation {spread:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in FAMILIES:
        if len(sys.argv) == 1 or family.__name__ in sys.argv[1:]:
            make(family)
