// Hunyuan-A13B: softmax over all experts, the top k renormalized, one shared expert without gate;
// queries and keys normalized a head, behind RoPE. Published files give one number for each layer.
#include <algorithm>

#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

// One number, or the same one for every layer.
int64_t SameForAll(ConfigFields& fields, const char* key, int64_t low, int64_t high, int64_t def) {
  const std::vector<int64_t> values = fields.Ints(key, low, high, /*scalar_too=*/true);
  if (values.empty()) return def;
  if (std::count(values.begin(), values.end(), values[0]) != static_cast<int64_t>(values.size())) {
    fields.Fail(key, "legal is one number for all layers");
  }
  return values[0];
}

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  if (fields.Bool("use_qk_norm", true)) config.qk_norm = QkNorm::kPerHeadRotated;
  for (const char* key : {"use_cla", "use_mla", "group_limited_greedy", "moe_drop_tokens",
                          "position_embedding_xdrope", "add_classification_head"}) {
    fields.Expect(key, false);
  }
  fields.Expect("use_rotary_pos_emb", true);
  fields.Expect("norm_topk_prob", true);
  ExpectString(fields, "norm_type", "rms");
  fields.Int("moe_layer_num_skipped", 0, 0, 0);
  fields.Int("attention_head_dim", config.head_dim, config.head_dim, config.head_dim);
  WithoutEffect(fields, {"cla_share_factor"}, "use_cla is false", &config.unused);
  WithoutEffect(fields, {"moe_random_routing_dropped_token"}, "no token is dropped",
                &config.unused);
  WithoutEffect(fields, {"dense_list", "pool_type", "class_num", "skip_cls_token"},
                "of a classifier", &config.unused);
  WithoutEffect(fields,
                {"num_media_embeds", "vit_add_patchemb_bias", "vit_mapping_type", "vit_norm_type",
                 "vit_remove_prenorm", "vit_used_rms_norm"},
                "of pictures", &config.unused);
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(SameForAll(fields, "num_experts", 1, kMaxExpertCount, 1));
  layer.hidden = config.hidden_size;
  const int64_t width = fields.Int("intermediate_size", 1, kMaxFfnWidth);
  layer.intermediate = SameForAll(fields, "moe_intermediate_size", 1, kMaxFfnWidth, width);
  if (fields.Bool("use_mixed_mlp_moe", true)) {
    const int64_t most = kMaxFfnWidth / width;
    layer.shared_intermediate = width * SameForAll(fields, "num_shared_expert", 1, most, 1);
  }
  layer.activation = config.activation;
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.top_k = static_cast<int>(SameForAll(fields, "moe_topk", 1, layer.num_experts, 1));
  layer.routing.renormalize = true;
  AddMoeLayers(layer, config);
  config.names = MlpNames();
  config.names.router = "model.layers.{layer}.mlp.gate.wg.weight";
  config.names.shared_expert = "model.layers.{layer}.mlp.shared_mlp.{projection}.weight";
}

}  // namespace

const Architecture kHunyuanV1Moe = {.model_type = "hunyuan_v1_moe", .read = Read, .norm_eps = 1e-5};

}  // namespace moert
