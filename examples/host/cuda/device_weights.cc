#include "host/cuda/device_weights.h"

#include <string>

#include "host/blocks/rope.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

absl::StatusOr<DeviceNorm> LoadNorm(const Checkpoint& checkpoint, const std::string& name,
                                    NormKind kind, int64_t width) {
  DeviceNorm norm;
  MOERT_ASSIGN_OR_RETURN(const auto weight, checkpoint.ReadF32(name + ".weight", {width}));
  MOERT_ASSIGN_OR_RETURN(norm.weight, ToDevice(weight));
  if (kind == NormKind::kLayer) {
    MOERT_ASSIGN_OR_RETURN(const auto bias, checkpoint.ReadF32(name + ".bias", {width}));
    MOERT_ASSIGN_OR_RETURN(norm.bias, ToDevice(bias));
  }
  return norm;
}

absl::StatusOr<DeviceLayer> LoadLayer(const Checkpoint& checkpoint, const HfConfig& config,
                                      int index) {
  DeviceLayer layer;
  const std::string name = "model.layers." + std::to_string(index) + ".";
  const std::string attention = name + "self_attn.";
  const int64_t hidden = config.hidden_size;
  const int64_t q = config.num_attention_heads * config.head_dim;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const bool bias = config.qkv_bias;
  MOERT_ASSIGN_OR_RETURN(layer.attention_norm,
                         LoadNorm(checkpoint, name + "input_layernorm", config.norm, hidden));
  MOERT_ASSIGN_OR_RETURN(
      layer.mlp_norm, LoadNorm(checkpoint, name + "post_attention_layernorm", config.norm, hidden));
  MOERT_ASSIGN_OR_RETURN(layer.qkv, DeviceMatrix::Load(checkpoint,
                                                       {{attention + "q_proj", q, bias},
                                                        {attention + "k_proj", kv, bias},
                                                        {attention + "v_proj", kv, bias}},
                                                       hidden));
  MOERT_ASSIGN_OR_RETURN(
      layer.o, DeviceMatrix::Load(
                   checkpoint, {{attention + "o_proj", hidden, config.attention_output_bias}}, q));
  if (config.qk_norm != QkNorm::kNone) {
    const bool per_head = config.qk_norm == QkNorm::kPerHead;
    MOERT_ASSIGN_OR_RETURN(layer.q_norm, LoadNorm(checkpoint, attention + "q_norm", NormKind::kRms,
                                                  per_head ? config.head_dim : q));
    MOERT_ASSIGN_OR_RETURN(layer.k_norm, LoadNorm(checkpoint, attention + "k_norm", NormKind::kRms,
                                                  per_head ? config.head_dim : kv));
  }
  layer.moe_layer = config.MoeLayerIndex(index);
  if (layer.moe_layer < 0) {
    const int64_t width = config.dense_intermediate;
    MOERT_ASSIGN_OR_RETURN(
        layer.gate_up,
        DeviceMatrix::Load(
            checkpoint, {{name + "mlp.gate_proj", width}, {name + "mlp.up_proj", width}}, hidden));
    MOERT_ASSIGN_OR_RETURN(
        layer.down, DeviceMatrix::Load(checkpoint, {{name + "mlp.down_proj", hidden}}, width));
  }
  return layer;
}

}  // namespace

absl::StatusOr<DeviceWeights> DeviceWeights::Load(const Checkpoint& checkpoint,
                                                  const HfConfig& config) {
  DeviceWeights w;
  MOERT_ASSIGN_OR_RETURN(w.embedding,
                         DeviceMatrix::Load(checkpoint, {{"model.embed_tokens", config.vocab_size}},
                                            config.hidden_size));
  if (!config.tie_word_embeddings) {
    MOERT_ASSIGN_OR_RETURN(
        w.head,
        DeviceMatrix::Load(checkpoint, {{"lm_head", config.vocab_size, config.lm_head_bias}},
                           config.hidden_size));
  }
  MOERT_ASSIGN_OR_RETURN(w.final_norm,
                         LoadNorm(checkpoint, "model.norm", config.norm, config.hidden_size));
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    MOERT_ASSIGN_OR_RETURN(DeviceLayer layer, LoadLayer(checkpoint, config, i));
    w.layers.push_back(std::move(layer));
  }
  MOERT_RETURN_IF_ERROR(w.LoadFrequencies(config));
  return w;
}

absl::StatusOr<DeviceWeights> DeviceWeights::Random(const HfConfig& config, uint64_t seed) {
  DeviceWeights w;
  seed *= 1 + 8 * static_cast<uint64_t>(config.num_hidden_layers + 1);
  const auto matrix = [&](int64_t out, int64_t in) {
    return DeviceMatrix::Random(out, in, ++seed);
  };
  const auto ones = [](DeviceNorm* norm, int64_t width) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(norm->weight, ToDevice(std::vector<float>(width, 1.0f)));
    return absl::OkStatus();
  };
  const int64_t hidden = config.hidden_size, dense = config.dense_intermediate;
  const int64_t q = config.num_attention_heads * config.head_dim;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  MOERT_ASSIGN_OR_RETURN(w.embedding, matrix(config.vocab_size, hidden));
  if (!config.tie_word_embeddings) {
    MOERT_ASSIGN_OR_RETURN(w.head, matrix(config.vocab_size, hidden));
  }
  MOERT_RETURN_IF_ERROR(ones(&w.final_norm, hidden));
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    DeviceLayer layer;
    MOERT_RETURN_IF_ERROR(ones(&layer.attention_norm, hidden));
    MOERT_RETURN_IF_ERROR(ones(&layer.mlp_norm, hidden));
    MOERT_ASSIGN_OR_RETURN(layer.qkv, matrix(q + 2 * kv, hidden));
    MOERT_ASSIGN_OR_RETURN(layer.o, matrix(hidden, q));
    if (config.qk_norm != QkNorm::kNone) {
      const bool per_head = config.qk_norm == QkNorm::kPerHead;
      MOERT_RETURN_IF_ERROR(ones(&layer.q_norm, per_head ? config.head_dim : q));
      MOERT_RETURN_IF_ERROR(ones(&layer.k_norm, per_head ? config.head_dim : kv));
    }
    layer.moe_layer = config.MoeLayerIndex(i);
    if (layer.moe_layer < 0) {
      MOERT_ASSIGN_OR_RETURN(layer.gate_up, matrix(2 * dense, hidden));
      MOERT_ASSIGN_OR_RETURN(layer.down, matrix(hidden, dense));
    }
    w.layers.push_back(std::move(layer));
  }
  MOERT_RETURN_IF_ERROR(w.LoadFrequencies(config));
  return w;
}

absl::Status DeviceWeights::LoadFrequencies(const HfConfig& config) {
  const Rope rope(config.rope);
  std::vector<float> all;
  for (int set = 0; set < rope.num_sets(); ++set) {
    const std::vector<float>& f = rope.inverse_frequencies(set);
    all.insert(all.end(), f.begin(), f.end());
    rope_factors[set] = rope.attention_factor(set);
  }
  MOERT_ASSIGN_OR_RETURN(frequencies, ToDevice(all));
  return absl::OkStatus();
}

}  // namespace moert::host
