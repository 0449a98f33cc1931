#include <fmt/format.h>

#include "checkpoint/architectures/architecture.h"

namespace moert {

absl::Span<const Architecture* const> Architectures() {
  static constexpr const Architecture* kAll[] = {
      &kDeepseek,     &kDeepseekV2, &kDeepseekV3, &kDots1,    &kErnie45Moe, &kGlm4Moe,   &kGptOss,
      &kHunyuanV1Moe, &kKimiK2,     &kKimiK25,    &kLlama4,   &kLlama4Text, &kMinimaxM2, &kMixtral,
      &kOlmoe,        &kPhimoe,     &kQwen2Moe,   &kQwen3Moe, &kQwen3Next,  &kXverse};
  return kAll;
}

const char* ExpertCountKey(const ConfigFields& fields) {
  return fields.Has("num_local_experts") ? "num_local_experts" : "num_experts";
}

void ReadSparseStep(ConfigFields& fields, HfConfig& config) {
  const int64_t step = fields.Int("decoder_sparse_step", 1, kMaxLayerCount, 1);
  const std::vector<int64_t> dense =
      fields.Ints("mlp_only_layers", 0, int64_t{config.num_hidden_layers} - 1);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    config.is_moe[static_cast<size_t>(i)] = (int64_t{i} + 1) % step == 0;
  }
  for (int64_t i : dense) config.is_moe[static_cast<size_t>(i)] = false;
}

void ReadDenseFirst(ConfigFields& fields, HfConfig& config) {
  const int64_t layers = config.num_hidden_layers;
  const int64_t dense = fields.Int("first_k_dense_replace", 0, layers, 0);
  const int64_t step = fields.Int("moe_layer_freq", 1, kMaxLayerCount, 1);
  for (int64_t i = 0; i < layers; ++i) {
    config.is_moe[static_cast<size_t>(i)] = i >= dense && i % step == 0;
  }
}

MoeLayerSpec ReadDeepseekExperts(ConfigFields& fields, const HfConfig& config, bool renormalize) {
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("n_routed_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("moe_intermediate_size", 1, kMaxFfnWidth);
  const int64_t shared = fields.Int("n_shared_experts", 0, kMaxFfnWidth / layer.intermediate, 0);
  layer.shared_intermediate = shared * layer.intermediate;  // stored as one wide expert
  layer.activation = config.activation;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = fields.Bool("norm_topk_prob", renormalize);
  layer.routing.scaling = static_cast<float>(fields.Real("routed_scaling_factor", 1e-6, 1e6, 1.0));
  return layer;
}

MoeLayerSpec ReadSoftmaxExperts(ConfigFields& fields, const HfConfig& config, const char* width,
                                bool renormalize) {
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int(ExpertCountKey(fields), 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int(width, 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = fields.Bool("norm_topk_prob", renormalize);
  return layer;
}

void ExpectString(ConfigFields& fields, const char* key, const char* value) {
  if (fields.String(key, value) != value) fields.Fail(key, fmt::format("legal is {}", value));
}

void ReadGroups(ConfigFields& fields, MoeLayerSpec& layer) {
  layer.routing.num_groups = static_cast<int>(fields.Int("n_group", 1, layer.num_experts, 1));
  layer.routing.top_groups =
      static_cast<int>(fields.Int("topk_group", 1, layer.routing.num_groups, 1));
}

void ReadAttentionBias(ConfigFields& fields, HfConfig& config) {
  config.qkv_bias = fields.Bool("attention_bias", false);
  config.attention_output_bias = config.qkv_bias;
}

MoeTensorNames MlpNames() {
  MoeTensorNames names;
  names.expert = "model.layers.{layer}.mlp.experts.{expert}.{projection}.weight";
  names.projections = {"gate_proj", "up_proj", "down_proj"};
  names.router = "model.layers.{layer}.mlp.gate.weight";
  return names;
}

MoeTensorNames DeepseekNames() {
  MoeTensorNames names = MlpNames();
  names.shared_expert = "model.layers.{layer}.mlp.shared_experts.{projection}.weight";
  names.selection_bias = "model.layers.{layer}.mlp.gate.e_score_correction_bias";
  return names;
}

MoeTensorNames BlockSparseNames() {
  MoeTensorNames names;
  names.expert = "model.layers.{layer}.block_sparse_moe.experts.{expert}.{projection}.weight";
  names.projections = {"w1", "w3", "w2"};
  names.router = "model.layers.{layer}.block_sparse_moe.gate.weight";
  return names;
}

void AddMoeLayers(const MoeLayerSpec& layer, HfConfig& config) {
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    if (!config.is_moe[static_cast<size_t>(i)]) continue;
    config.moe.layers.push_back(layer);
    config.moe.layers.back().model_layer = i;
  }
}

void AddGatedSharedLayers(ConfigFields& fields, HfConfig& config, bool renormalize) {
  MoeLayerSpec layer = ReadSoftmaxExperts(fields, config, "moe_intermediate_size", renormalize);
  layer.shared_intermediate = fields.Int("shared_expert_intermediate_size", 1, kMaxFfnWidth);
  layer.shared_gate = true;
  AddMoeLayers(layer, config);
  config.names = MlpNames();
  config.names.shared_expert = "model.layers.{layer}.mlp.shared_expert.{projection}.weight";
  config.names.shared_gate = "model.layers.{layer}.mlp.shared_expert_gate.weight";
}

}  // namespace moert
