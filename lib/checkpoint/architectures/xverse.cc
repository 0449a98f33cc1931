// XVERSE-MoE: softmax then top-k with renormalized weights, shared experts without gate that are
// multiples of a routed one. (The dense XVERSE models have the same model_type but no num_experts.)
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("num_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  const int64_t shared = fields.Int("num_shared_experts", 0, kMaxFfnWidth / layer.intermediate, 0);
  layer.shared_intermediate = shared * layer.intermediate;  // stored as one wide expert
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(fields.Int("moe_top_k", 1, layer.num_experts));
  // Ports of the published code disagree; a field that some of them have decides.
  layer.routing.renormalize = fields.Bool("norm_topk_prob", true);
  AddMoeLayers(layer, config);
  config.names = MlpNames();
  config.names.router = "model.layers.{layer}.mlp.router.weight";
  config.names.shared_expert = "model.layers.{layer}.mlp.shared_experts.{projection}.weight";
}

}  // namespace

const Architecture kXverse = {.model_type = "xverse", .read = Read};

}  // namespace moert
