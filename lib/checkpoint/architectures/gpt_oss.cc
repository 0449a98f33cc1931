// gpt-oss: the k highest biased logits, then softmax over them; experts with biases and a clamped
// SwiGLU, gate's and up's rows taking turns; attention with sinks, every other layer windowed.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  config.qkv_bias = fields.Bool("attention_bias", true);
  config.attention_output_bias = config.qkv_bias;
  config.attention_sinks = true;
  if (!fields.Has("layer_types")) {
    for (size_t i = 1; i < config.mixers.size(); i += 2) config.mixers[i] = {};
  }

  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(fields.Int(ExpertCountKey(fields), 1, kMaxExpertCount));
  layer.hidden = config.hidden_size;
  layer.intermediate = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.activation = config.activation;
  layer.activation.alpha = static_cast<float>(fields.Real("swiglu_alpha", 1e-6, 1e6, 1.702));
  layer.activation.limit = static_cast<float>(fields.Real("swiglu_limit", 1e-6, 1e6, 7.0));
  layer.activation.up_offset = 1;
  layer.expert_bias = true;
  layer.routing.kind = RoutingKind::kTopKSoftmax;
  layer.routing.top_k = static_cast<int>(fields.Int("num_experts_per_tok", 1, layer.num_experts));
  layer.routing.logit_bias = true;
  fields.Int("experts_per_token", layer.routing.top_k, layer.routing.top_k, layer.routing.top_k);
  WithoutEffect(fields, {"initial_context_length"}, "rope_parameters has it", &config.unused);
  AddMoeLayers(layer, config);
  config.names = MlpNames();
  config.names.router = "model.layers.{layer}.mlp.router.weight";
  config.names.router_bias = "model.layers.{layer}.mlp.router.bias";
  config.names.interleaved = true;
}

}  // namespace

const Architecture kGptOss = {
    .model_type = "gpt_oss", .read = Read, .rope_theta = 150000.0, .norm_eps = 1e-5};

}  // namespace moert
