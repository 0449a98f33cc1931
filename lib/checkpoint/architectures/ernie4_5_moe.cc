// ERNIE 4.5: softmax with a selection bias, renormalized; shared experts without gate; pairs of
// neighbouring channels are rotated.
#include <fmt/format.h>

#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

constexpr double kNoEffect = 1e-9;  // as moe_norm_min

// moe_layer_start_index to moe_layer_end_index (-1: the last), every moe_layer_interval-th.
void ReadLayers(ConfigFields& fields, HfConfig& config) {
  const int64_t layers = config.num_hidden_layers;
  const int64_t first = fields.Int("moe_layer_start_index", 0, layers - 1, 1);
  const int64_t last = fields.Int("moe_layer_end_index", -1, layers - 1, -1);
  const int64_t step = fields.Int("moe_layer_interval", 1, kMaxLayerCount, 1);
  for (int64_t i = 0; i < layers; ++i) {
    config.is_moe[static_cast<size_t>(i)] =
        i >= first && (last < 0 || i <= last) && (i + 1) % step == 0;
  }
}

void Read(ConfigFields& fields, HfConfig& config) {
  fields.Expect("use_bias", false);
  fields.Expect("use_rmsnorm", true);
  fields.Expect("moe_use_aux_free", true);
  ExpectString(fields, "moe_gate", "topk");
  WithoutEffect(fields, {"moe_capacity"}, "no token is dropped", &config.unused);
  // The sum of a token's weights is not smaller.
  if (fields.Real("moe_norm_min", 0, 1, kNoEffect) > kNoEffect) {
    fields.Fail("moe_norm_min", fmt::format("legal is a number from 0 to {}", kNoEffect));
  }
  ReadLayers(fields, config);
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("moe_num_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("moe_intermediate_size", 1, kMaxFfnWidth);
  const int64_t shared =
      fields.Int("moe_num_shared_experts", 0, kMaxFfnWidth / layer.intermediate, 0);
  layer.shared_intermediate = shared * layer.intermediate;  // stored as one wide expert
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(fields.Int("moe_k", 1, layer.num_experts));
  layer.routing.renormalize = true;
  layer.routing.selection_bias = true;
  AddMoeLayers(layer, config);
  config.names = DeepseekNames();
  config.names.selection_bias = "model.layers.{layer}.mlp.moe_statics.e_score_correction_bias";
  config.rope.interleaved = true;
}

}  // namespace

const Architecture kErnie45Moe = {
    .model_type = "ernie4_5_moe", .read = Read, .rope_theta = 5e5, .norm_eps = 1e-5};

}  // namespace moert
