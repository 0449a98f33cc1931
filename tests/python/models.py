"""Tiny random models of transformers' architectures, whose weights bf16 holds exactly."""
import torch
import transformers

_COMMON = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
               num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
               pad_token_id=0, bos_token_id=1, eos_token_id=2)
_EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
_LOCAL = dict(intermediate_size=32, num_local_experts=8, num_experts_per_tok=2)
_DEEPSEEK = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
                 n_shared_experts=1, first_k_dense_replace=1, n_group=2, topk_group=1)
_MLA = dict(kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16)

ARCHITECTURES = {
    "Qwen2Moe": dict(_EXPERTS, shared_expert_intermediate_size=48),
    "Qwen3Moe": dict(_EXPERTS, head_dim=16),
    "Mixtral": _LOCAL,
    "Olmoe": dict(_LOCAL, num_experts=8),
    "Phimoe": _LOCAL,
    "DeepseekV2": dict(_DEEPSEEK, **_MLA, head_dim=8),
    "DeepseekV3": dict(_DEEPSEEK, **_MLA),
    "Glm4Moe": dict(_DEEPSEEK, head_dim=16),
    "Dots1": dict(_DEEPSEEK, head_dim=16),
    "Ernie4_5_Moe": dict(moe_num_experts=8, moe_k=2, moe_intermediate_size=32,
                         moe_num_shared_experts=1, moe_layer_start_index=1),
    "Qwen3Next": dict(_EXPERTS, shared_expert_intermediate_size=48, head_dim=16,
                      linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
                      linear_value_head_dim=16, num_hidden_layers=4),
    "MiniMaxM2": dict(_LOCAL, head_dim=16),
    "HunYuanMoEV1": dict(_EXPERTS, moe_topk=2, head_dim=16),
    "FlexOlmo": dict(_LOCAL, num_experts=8),
    "GraniteMoe": _LOCAL,
    "Lfm2Moe": dict(_EXPERTS, num_dense_layers=1, layer_types=["conv", "full_attention", "conv"]),
    "SolarOpen": dict(_DEEPSEEK, head_dim=16),
}


def make(name, **changes):
    """A model of ARCHITECTURES in fp32; None where this transformers does not have it."""
    config_class = getattr(transformers, name + "Config", None)
    if config_class is None:
        return None
    torch.manual_seed(1)
    config = config_class(**{**_COMMON, **ARCHITECTURES[name], **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.08)
        weights.data.copy_(weights.data.bfloat16())
    return model
