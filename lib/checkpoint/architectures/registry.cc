#include "checkpoint/architectures/architecture.h"

namespace moert {

absl::Span<const Architecture* const> Architectures() {
  static constexpr const Architecture* kAll[] = {&kDeepseek, &kMixtral,  &kOlmoe, &kPhimoe,
                                                 &kQwen2Moe, &kQwen3Moe, &kXverse};
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

}  // namespace moert
