// MiniMax-M2: sigmoid scores with a selection bias, renormalized, no groups, no shared expert;
// queries and keys normalized over all heads, half of a head rotated (rotary_dim).
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  config.qk_norm = QkNorm::kFull;
  fields.Expect("use_qk_norm", true);
  fields.Expect("use_routing_bias", true);
  ExpectString(fields, "qk_norm_type", "per_layer");
  fields.Ints("attn_type_list", 1, 1);  // softmax in every layer
  for (const char* key :
       {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"}) {
    fields.Real(key, 1, 1, 1.0);
  }
  WithoutEffect(fields, {"mlp_intermediate_size"}, "no layer is dense", &config.unused);
  WithoutEffect(fields, {"shared_moe_mode"}, "there is no shared expert", &config.unused);
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("num_local_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSigmoidGrouped;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = true;
  layer.routing.selection_bias = true;
  ExpectString(fields, "scoring_func", "sigmoid");
  fields.Int("shared_intermediate_size", 0, 0, 0);
  AddMoeLayers(layer, config);
  config.names = BlockSparseNames();
  config.names.selection_bias = "model.layers.{layer}.block_sparse_moe.e_score_correction_bias";
}

}  // namespace

const Architecture kMinimaxM2 = {.model_type = "minimax_m2", .read = Read, .rope_theta = 5e6};

}  // namespace moert
