// The dense parts of the config.json that a synthetic model would have.
#include <fmt/format.h>

#include <cmath>

#include "cli/bench/decoder_bench.h"

namespace moert::cli {
namespace {

/// A model whose layers are not plain grouped attention.
struct Other {
  const char* name;
  int64_t vocabulary;
  void (*set)(HfConfig&);
};

void SetQwen3Next(HfConfig& config) {
  config.norm = NormKind::kRmsOffset;
  config.qk_norm = QkNorm::kPerHead;
  config.attention_gate = true;
  config.rope.dim = 64;
  config.delta_net = {16, 32, 128, 128, 4};
  for (size_t i = 0; i < config.mixers.size(); ++i) {
    if (i % 4 != 3) config.mixers[i].kind = MixerKind::kDeltaNet;
  }
}

void SetLatent(int64_t q_rank, int64_t dense_intermediate, HfConfig& config) {
  config.latent = {512, q_rank, 128, 64, 128};
  config.head_dim = 192;
  config.num_key_value_heads = config.num_attention_heads;
  config.rope.dim = 64;
  config.rope.interleaved = true;
  config.dense_intermediate = dense_intermediate;
}
void SetV2Lite(HfConfig& config) { SetLatent(0, 10944, config); }
void SetV3(HfConfig& config) { SetLatent(1536, 18432, config); }

constexpr Other kOthers[] = {
    {"qwen3-next-80b", 151936, SetQwen3Next},
    {"deepseek-v2-lite", 102400, SetV2Lite},
    {"deepseek-v3", 129280, SetV3},
};

const Other* FindOther(const std::string& name) {
  for (const Other& other : kOthers) {
    if (name == other.name) return &other;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<HfConfig> DecoderConfig(const Shape& shape) {
  const Other* const other = FindOther(shape.name);
  if (shape.vocabulary == 0 && other == nullptr) {
    return absl::UnimplementedError(
        fmt::format("shape {}: moert-bench model does not know its dense parts", shape.name));
  }
  HfConfig config;
  config.model_type = shape.name;
  config.moe = shape.spec;
  config.vocab_size = other == nullptr ? shape.vocabulary : other->vocabulary;
  config.hidden_size = shape.spec.layers.front().hidden;
  // Dense layers may come before the MoE layers.
  config.num_hidden_layers = shape.spec.layers.back().model_layer + 1;
  config.num_attention_heads = shape.heads;
  config.num_key_value_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.max_position_embeddings = int64_t{1} << 17;
  config.rope.dim = shape.head_dim;
  config.rope.theta = 1e6;
  config.qk_norm = shape.qk_norm ? QkNorm::kPerHead : QkNorm::kNone;
  config.mixers.resize(config.num_hidden_layers);
  config.is_moe.assign(config.num_hidden_layers, false);
  for (const MoeLayerSpec& layer : shape.spec.layers) config.is_moe[layer.model_layer] = true;
  if (other != nullptr) other->set(config);
  config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  return config;
}

}  // namespace moert::cli
