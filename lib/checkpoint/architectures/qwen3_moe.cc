// Qwen3-MoE: softmax then top-k, no shared expert, queries and keys normalized a head.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  ReadSparseStep(fields, config);
  config.qk_norm = QkNorm::kPerHead;

  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int(ExpertCountKey(fields), 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("moe_intermediate_size", 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = fields.Bool("norm_topk_prob", false);
  AddMoeLayers(layer, config);
  config.names = MlpNames();
}

}  // namespace

const Architecture kQwen3Moe = {
    .model_type = "qwen3_moe", .read = Read, .window_without_flag = false};

}  // namespace moert
