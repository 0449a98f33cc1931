#include "host/cuda/device_weights.h"

#include <string>

#include "host/blocks/mixer.h"
#include "host/blocks/rope.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

absl::StatusOr<DeviceLayer> LoadLayer(const Checkpoint& checkpoint, const HfConfig& config,
                                      int index) {
  DeviceLayer layer;
  const std::string name = LayerPrefix(config, index);
  const int64_t hidden = config.hidden_size;
  MOERT_ASSIGN_OR_RETURN(layer.mixer_norm, DeviceNorm::Load(checkpoint, name + "input_layernorm",
                                                            config.norm, hidden));
  MOERT_ASSIGN_OR_RETURN(
      layer.mlp_norm,
      DeviceNorm::Load(checkpoint, name + "post_attention_layernorm", config.norm, hidden));
  MOERT_ASSIGN_OR_RETURN(layer.mixer, MixerWeights::Load(checkpoint, config, index));
  layer.moe_layer = config.MoeLayerIndex(index);
  if (layer.moe_layer < 0) {
    const int64_t width = config.dense_intermediate;
    const std::string block = name + config.dense_block;
    MOERT_ASSIGN_OR_RETURN(
        layer.gate_up,
        DeviceMatrix::Load(checkpoint, config.quantization,
                           {{block + ".gate_proj", width}, {block + ".up_proj", width}}, hidden));
    MOERT_ASSIGN_OR_RETURN(layer.down, DeviceMatrix::Load(checkpoint, config.quantization,
                                                          {{block + ".down_proj", hidden}}, width));
  }
  return layer;
}

}  // namespace

absl::StatusOr<DeviceWeights> DeviceWeights::Load(const Checkpoint& checkpoint,
                                                  const HfConfig& config) {
  DeviceWeights w;
  const std::string &prefix = config.tensor_prefix, &body = config.tensor_body;
  MOERT_ASSIGN_OR_RETURN(
      w.embedding,
      DeviceMatrix::Load(checkpoint, config.quantization,
                         {{body + "embed_tokens", config.vocab_size}}, config.hidden_size));
  if (!config.tie_word_embeddings) {
    MOERT_ASSIGN_OR_RETURN(
        w.head, DeviceMatrix::Load(checkpoint, config.quantization,
                                   {{prefix + "lm_head", config.vocab_size, config.lm_head_bias}},
                                   config.hidden_size));
  }
  MOERT_ASSIGN_OR_RETURN(
      w.final_norm, DeviceNorm::Load(checkpoint, body + "norm", config.norm, config.hidden_size));
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    MOERT_ASSIGN_OR_RETURN(DeviceLayer layer, LoadLayer(checkpoint, config, i));
    w.layers.push_back(std::move(layer));
  }
  MOERT_RETURN_IF_ERROR(w.LoadRopes(config));
  return w;
}

absl::StatusOr<DeviceWeights> DeviceWeights::Random(const HfConfig& config, uint64_t seed) {
  DeviceWeights w;
  seed *= 1 + 8 * static_cast<uint64_t>(config.num_hidden_layers + 1);
  const auto matrix = [&](int64_t out, int64_t in) {
    return DeviceMatrix::Random(out, in, ++seed);
  };
  const int64_t hidden = config.hidden_size, dense = config.dense_intermediate;
  MOERT_ASSIGN_OR_RETURN(w.embedding, matrix(config.vocab_size, hidden));
  if (!config.tie_word_embeddings) {
    MOERT_ASSIGN_OR_RETURN(w.head, matrix(config.vocab_size, hidden));
  }
  MOERT_ASSIGN_OR_RETURN(w.final_norm, DeviceNorm::Ones(hidden));
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    DeviceLayer layer;
    MOERT_ASSIGN_OR_RETURN(layer.mixer_norm, DeviceNorm::Ones(hidden));
    MOERT_ASSIGN_OR_RETURN(layer.mlp_norm, DeviceNorm::Ones(hidden));
    MOERT_ASSIGN_OR_RETURN(layer.mixer, MixerWeights::Random(config, i, &seed));
    layer.moe_layer = config.MoeLayerIndex(i);
    if (layer.moe_layer < 0) {
      MOERT_ASSIGN_OR_RETURN(layer.gate_up, matrix(2 * dense, hidden));
      MOERT_ASSIGN_OR_RETURN(layer.down, matrix(hidden, dense));
    }
    w.layers.push_back(std::move(layer));
  }
  MOERT_RETURN_IF_ERROR(w.LoadRopes(config));
  return w;
}

absl::StatusOr<DeviceRope> DeviceRope::Load(const RopeConfig& config, int64_t pairs) {
  const Rope rope(config);
  DeviceRope loaded;
  std::vector<float> all;
  for (int set = 0; set < rope.num_sets(); ++set) {
    std::vector<float> f = rope.inverse_frequencies(set);
    f.resize(static_cast<size_t>(pairs));
    all.insert(all.end(), f.begin(), f.end());
    loaded.factors[set] = rope.attention_factor(set);
  }
  MOERT_ASSIGN_OR_RETURN(loaded.frequencies, ToDevice(all));
  return loaded;
}

absl::Status DeviceWeights::LoadRopes(const HfConfig& config) {
  const bool latent = config.latent.kv_rank > 0;
  const int64_t pairs = (latent ? config.rope.dim : config.head_dim) / 2;
  MOERT_ASSIGN_OR_RETURN(rope, DeviceRope::Load(config.rope, pairs));
  if (!config.window) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(window_rope,
                         DeviceRope::Load(config.window->rope, config.window->head_dim / 2));
  return absl::OkStatus();
}

}  // namespace moert::host
