// DeepSeekMoE, the first generation (16B): dense first layers, softmax then top-k, shared experts
// without gate, plain attention.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  const int64_t layers = config.num_hidden_layers;
  const int64_t dense = fields.Int("first_k_dense_replace", 0, layers, 0);
  const int64_t step = fields.Int("moe_layer_freq", 1, kMaxLayerCount, 1);
  for (int64_t i = 0; i < layers; ++i) {
    config.is_moe[static_cast<size_t>(i)] = i >= dense && i % step == 0;
  }
  if (const std::string score = fields.String("scoring_func", "softmax"); score != "softmax") {
    fields.Fail("scoring_func", "legal for deepseek is softmax");
  }

  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int("n_routed_experts", 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("moe_intermediate_size", 1, kMaxFfnWidth);
  const int64_t shared = fields.Int("n_shared_experts", 0, kMaxFfnWidth / layer.intermediate, 0);
  layer.shared_intermediate = shared * layer.intermediate;  // stored as one wide expert
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = fields.Bool("norm_topk_prob", false);
  AddMoeLayers(layer, config);
  config.names = MlpNames();
  config.names.shared_expert = "model.layers.{layer}.mlp.shared_experts.{projection}.weight";
}

}  // namespace

const Architecture kDeepseek = {.model_type = "deepseek", .read = Read};

}  // namespace moert
