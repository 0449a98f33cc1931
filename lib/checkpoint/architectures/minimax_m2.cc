// MiniMax-M2: sigmoid scores with a selection bias, renormalized, no groups, no shared expert;
// queries and keys normalized over all heads, half of a head rotated (rotary_dim).
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  config.qk_norm = QkNorm::kFull;
  if (!fields.Bool("use_qk_norm", true)) fields.Fail("use_qk_norm", "legal is true");
  if (fields.String("qk_norm_type", "per_layer") != "per_layer") {
    fields.Fail("qk_norm_type", "legal is per_layer");
  }
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("num_local_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSigmoidGrouped;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = true;
  layer.routing.selection_bias = true;
  if (fields.String("scoring_func", "sigmoid") != "sigmoid") {
    fields.Fail("scoring_func", "legal for minimax_m2 is sigmoid");
  }
  if (fields.Int("shared_intermediate_size", 0, kMaxFfnWidth, 0) != 0) {
    fields.Fail("shared_intermediate_size", "legal is 0");
  }
  AddMoeLayers(layer, config);
  config.names = BlockSparseNames();
  config.names.selection_bias = "model.layers.{layer}.block_sparse_moe.e_score_correction_bias";
}

}  // namespace

const Architecture kMinimaxM2 = {.model_type = "minimax_m2", .read = Read, .rope_theta = 5e6};

}  // namespace moert
