// OLMoE: softmax then top-k, no shared expert; queries and keys normalized over all heads together,
// then clipped.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  config.qk_norm = QkNorm::kFull;
  if (fields.Has("clip_qkv")) config.clip_qkv = fields.Real("clip_qkv", 1e-6, 1e6);

  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int(ExpertCountKey(fields), 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = fields.Bool("norm_topk_prob", false);
  AddMoeLayers(layer, config);
  config.names = MlpNames();
}

}  // namespace

const Architecture kOlmoe = {.model_type = "olmoe", .read = Read, .norm_eps = 1e-5};

}  // namespace moert
