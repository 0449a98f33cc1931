"""Tiny random models of every Mixture-of-Experts language model that transformers has, whose weights
bf16 holds exactly. A model is found by its modeling file having experts; its sizes are set by the
names that configurations have for them."""
import importlib
import inspect
import pathlib
import re

import torch
import transformers

SMALL = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size",
                     "ngram_vocab_size_base"), 128),
    **dict.fromkeys(("hidden_size", "d_model", "moe_hidden_size", "max_window_layers"), 64),
    **dict.fromkeys(("intermediate_size", "shared_intermediate_size", "dense_intermediate_size",
                     "share_expert_dim", "shared_expert_intermediate_size", "ffn_hidden_size",
                     "moe_shared_expert_intermediate_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers"), 4), "num_layers": 2,
    **dict.fromkeys(("num_attention_heads", "n_heads", "swa_num_attention_heads",
                     "linear_num_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads", "kv_n_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "v_head_dim", "linear_head_dim", "kv_channels",
                     "linear_key_head_dim", "linear_value_head_dim", "index_head_dim",
                     "mamba_head_dim", "mamba_d_state", "ssm_state_size", "kv_lora_rank",
                     "global_head_dim", "swa_v_head_dim", "router_hidden_size"), 16),
    **dict.fromkeys(("q_lora_rank", "o_lora_rank"), 24),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "d_rel",
                     "gated_norm_rank", "loop_gate_rank", "hc_lowrank"), 8),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_top_k", "moe_k"), 2),
    **dict.fromkeys(("n_group", "num_expert_group"), 2), "topk_group": 1,
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index",
                     "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("index_n_heads", "linear_num_value_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("linear_num_key_heads", "n_groups", "o_groups", "zero_expert_num"), 2),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "index_topk", "rel_extent",
                     "attention_chunk_size"), 32),
    **dict.fromkeys(("max_position_embeddings", "max_seq_len"), 128),
    **dict.fromkeys(("pad_token_id", "num_nextn_predict_layers", "num_mtp_layers"), 0),
    "bos_token_id": 1, "eos_token_id": 2, "hidden_size_per_layer_input": 16,
}

# Its name cannot tell these.
_HYBRID = ["linear_attention", "full_attention"] * 2
_SPARSE = ["dense", *["sparse"] * 3]
OWN = {
    "bailing_hybrid": dict(layer_group_size=2),
    "dbrx": dict(attn_config=dict(clip_qkv=8.0, rope_theta=10000.0), ffn_config=dict(hidden_size=64)),
    "deepseek_ocr2": dict(text_config=dict(mlp_layer_types=_SPARSE, num_key_value_heads=4)),
    "deepseek_v4": dict(num_key_value_heads=1, head_dim=16, qk_rope_head_dim=8, o_groups=2),
    "dots3_note": dict(**{"swa_" + key: value for key, value in dict(
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, head_dim=16,
        qk_nope_head_dim=8, v_head_dim=16).items()}, num_key_value_heads=4, head_dim=16),
    "ernie4_5_vl_moe": dict(text_config=dict(
        moe_intermediate_size=[32, 24],
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[3, 3, 2]))),
    "gemma4": dict(enable_moe_block=True),
    "glm4v_moe": dict(text_config=dict(rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
        mrope_section=[1, 1, 2]))),
    "glm5_next": dict(text_config=dict(qk_rope_head_dim=0, head_dim=0, num_key_value_heads=4)),
    "granitemoehybrid": dict(layer_types=_HYBRID),
    "hy_v4_vl": dict(text_config=dict(rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 2]))),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "kimi_linear": dict(layer_types=_HYBRID),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 2),
    "mimo_v2_flash": dict(head_dim=24),  # a third of it, which turns, is an even number
    "mistral4": dict(head_dim=16),
    "muse_spark": dict(audio_config=dict(out_hidden_size=64)),
    "nemotron_h": dict(layers_block_type=["mamba", "moe", "attention", "moe"]),
    "qwen4_exp": dict(indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16,
                      indexer_budget=32, indexer_compress_ratio=4),
    "unlimited_ocr": dict(text_config=dict(num_key_value_heads=4)),
    "zaya": dict(num_experts_per_tok=1),
}

# No language models: encoders and decoders of translation, classifiers, experts that are no
# products, and blocks that attention is a part of.
NONE = {"doge", "nllb_moe", "switch_transformers", "openai_privacy_filter", "vitpose_backbone",
        "diffusion_gemma"}


def names():
    """Every model, by the folder that it has in transformers."""
    root = pathlib.Path(transformers.__file__).parent / "models"
    found = []
    for path in sorted(root.glob("*/modeling_*.py")):
        if re.search(r"^class \w*Experts\w*\(", path.read_text(), re.M):
            if path.parent.name not in NONE:
                found.append(path.parent.name)
    return found


def _class(name):
    """The class of the language model: the one over text alone, if there is one."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass)
               if c.__module__ == module.__name__ and hasattr(c, "generate") and
               getattr(c, "config_class", None) is not None]
    for ending in ("ForCausalLM", "ThinkerForConditionalGeneration", "ForConditionalGeneration"):
        for c in classes:
            if c.__name__.endswith(ending):
                return c
    raise LookupError(f"{name}: no class of a language model")


def _has(config, key):
    try:
        return hasattr(config, key)
    except Exception:  # it has one for each layer, and does not like to be asked for all
        return True


def _shrunk(config_class, own):
    """Arguments of a small configuration."""
    default = config_class()
    inner = {key: value for key, value in own.items() if isinstance(value, dict)}
    found = {key: value for key, value in SMALL.items() if _has(default, key)}
    if "kv_lora_rank" in found:  # latent attention: every head has keys of its own
        found |= {key: value for key, value in (("num_key_value_heads", 4), ("head_dim", 8))
                  if key in found}
    for key in config_class.sub_configs:
        if isinstance(getattr(default, key, None), transformers.PreTrainedConfig):
            kind = type(getattr(default, key))
            found[key] = _shrunk(kind, inner.get(key, {}))
    return {**found, **{k: v for k, v in own.items() if k not in config_class.sub_configs}}


def make(name, **changes):
    """A model in fp32."""
    model_class = _class(name)
    torch.manual_seed(1)
    own = {**OWN.get(name, {}), **changes}
    config = model_class.config_class(**_shrunk(model_class.config_class, own))
    config._attn_implementation = "eager"
    model = model_class._from_config(config, dtype=torch.float32).eval()
    for key, weights in (*model.named_parameters(), *model.named_buffers()):
        if weights.is_floating_point() and "inv_freq" not in key and "rotary" not in key:
            if weights.dim() > 1 and isinstance(weights, torch.nn.Parameter):
                weights.data.normal_(0, 0.08)
            elif not torch.isfinite(weights).all():
                weights.data.zero_()
            weights.data.copy_(weights.data.bfloat16())
        elif key.endswith("tid2eid"):  # experts by token id: none of them twice
            weights.copy_(torch.rand(len(weights), 8).argsort(-1)[:, :weights.shape[1]])
    return model
