// Mixtral: the k highest logits, then softmax over them; no shared expert.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("num_local_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kTopKSoftmax;
  layer.routing.top_k =
      static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts, 2));
  AddMoeLayers(layer, config);
  config.names = BlockSparseNames();
  config.other_names = {MlpNames()};  // what newer exporters call the same tensors
}

}  // namespace

const Architecture kMixtral = {
    .model_type = "mixtral", .read = Read, .rope_theta = 1e6, .norm_eps = 1e-5};

}  // namespace moert
