// Qwen1.5-MoE and Qwen2-MoE: softmax then top-k, one gated shared expert, bias on q, k and v.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  config.qkv_bias = fields.Bool("qkv_bias", true);
  ReadSparseStep(fields, config);

  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int(ExpertCountKey(fields), 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("moe_intermediate_size", 1, kMaxFfnWidth);
  layer.shared_intermediate = fields.Int("shared_expert_intermediate_size", 1, kMaxFfnWidth);
  layer.shared_gate = true;
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.renormalize = fields.Bool("norm_topk_prob", false);
  AddMoeLayers(layer, config);

  config.names = MlpNames();
  config.names.shared_expert = "model.layers.{layer}.mlp.shared_expert.{projection}.weight";
  config.names.shared_gate = "model.layers.{layer}.mlp.shared_expert_gate.weight";
}

}  // namespace

const Architecture kQwen2Moe = {
    .model_type = "qwen2_moe", .read = Read, .window_without_flag = false};

}  // namespace moert
