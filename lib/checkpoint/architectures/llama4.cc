// The text half of Llama 4: the highest logits, their sigmoids on the experts' inputs, a shared
// expert without gate; attention in chunks, but for layers without RoPE, which see everything.
#include <fmt/format.h>

#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

constexpr int64_t kMaxChunk = int64_t{1} << 31;

// no_rope_layers has a 1 where a layer has RoPE; without it every no_rope_layer_interval-th has
// none.
void ReadMixers(ConfigFields& fields, HfConfig& config) {
  const size_t layers = config.mixers.size();
  const std::vector<int64_t> rotated = fields.Ints("no_rope_layers", 0, 1);
  const int64_t interval = fields.Int("no_rope_layer_interval", 1, kMaxLayerCount, 4);
  const int64_t chunk = fields.Int("attention_chunk_size", 0, kMaxChunk, 0);
  if (!rotated.empty() && rotated.size() != layers) {
    fields.Fail("no_rope_layers", fmt::format("legal is a list of {} numbers, or none", layers));
    return;
  }
  const auto types = fields.Find("layer_types");
  for (size_t i = 0; i < layers; ++i) {
    MixerConfig& mixer = config.mixers[i];
    mixer.rotate = rotated.empty() ? static_cast<int64_t>(i + 1) % interval != 0 : rotated[i] != 0;
    if (mixer.rotate && chunk > 0) mixer = {MixerKind::kChunk, chunk};
  }
  if (!types) return;
  auto mixer = config.mixers.begin();
  bool same = types->is_array() && types->size() == layers;
  for (const JsonValue type : types->elements()) {
    if (!same) break;
    const bool chunked = mixer->kind == MixerKind::kChunk || (mixer->rotate && chunk == 0);
    same = type.Is(chunked ? "chunked_attention" : "full_attention");
    ++mixer;
  }
  if (same) return;
  fields.Fail("layer_types",
              fmt::format("legal are {} names: chunked_attention where no_rope_layers has a layer "
                          "with RoPE, else full_attention",
                          layers));
}

// A boolean, in early files a number.
bool HasTemperature(ConfigFields& fields) {
  const auto tuning = fields.Find("attn_temperature_tuning");
  if (tuning && tuning->is_number()) return fields.Real("attn_temperature_tuning", 0, 1e6) != 0;
  return fields.Bool("attn_temperature_tuning", true);
}

void ReadMoeLayers(ConfigFields& fields, HfConfig& config) {
  const int64_t step = fields.Int("interleave_moe_layer_step", 1, kMaxLayerCount, 1);
  const std::vector<int64_t> listed =
      fields.Ints("moe_layers", 0, int64_t{config.num_hidden_layers} - 1);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    config.is_moe[static_cast<size_t>(i)] = listed.empty() && (int64_t{i} + 1) % step == 0;
  }
  for (const int64_t i : listed) config.is_moe[static_cast<size_t>(i)] = true;
}

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  ReadMixers(fields, config);
  ReadMoeLayers(fields, config);
  config.rope.interleaved = true;
  if (fields.Bool("use_qk_norm", true)) config.qk_norm = QkNorm::kPerHeadL2;
  if (HasTemperature(fields)) {
    config.temperature.scale = fields.Real("attn_scale", 0, 1e6, 0.1);
    config.temperature.floor = fields.Real("floor_scale", 1, 1e12, 8192);
  }

  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("num_local_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.shared_intermediate = layer.intermediate;
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kTopKSigmoid;
  layer.routing.top_k =
      static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts, 1));
  layer.routing.weight_input = true;
  AddMoeLayers(layer, config);

  config.dense_block = "feed_forward";
  const std::string block = config.tensor_prefix + "model.layers.{layer}.feed_forward.";
  config.names.expert = block + "experts.{expert}.{projection}.weight";
  config.names.projections = {"gate_proj", "up_proj", "down_proj"};
  config.names.router = block + "router.weight";
  config.names.shared_expert = block + "shared_expert.{projection}.weight";
}

constexpr Architecture kText = {.model_type = "llama4_text",
                                .read = Read,
                                .rope_theta = 5e5,
                                .norm_eps = 1e-5,
                                .own_layer_types = true,
                                .dense_width = "intermediate_size_mlp"};

// Where the file is that of a model for text and pictures.
constexpr Architecture Nested() {
  Architecture nested = kText;
  nested.model_type = "llama4";
  nested.text_config = "text_config";
  nested.tensor_prefix = "language_model.";
  return nested;
}

}  // namespace

const Architecture kLlama4Text = kText;
const Architecture kLlama4 = Nested();

}  // namespace moert
