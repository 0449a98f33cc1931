// Phi-3.5-MoE: sparsemixer routing over two experts, no shared expert; layer norms with bias.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  config.norm = NormKind::kLayer;
  config.lm_head_bias = fields.Bool("lm_head_bias", false);

  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("num_local_experts", 2, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSparseMixer;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 2, 2, 2));
  layer.routing.sparsemixer_eps =
      static_cast<float>(fields.Real("router_jitter_noise", 1e-6, 1.0, 0.01));
  AddMoeLayers(layer, config);
  config.names = BlockSparseNames();
  config.other_names = {MlpNames()};  // what newer exporters call the same tensors
}

}  // namespace

const Architecture kPhimoe = {
    .model_type = "phimoe", .read = Read, .rope_theta = 1e6, .norm_eps = 1e-5};

}  // namespace moert
