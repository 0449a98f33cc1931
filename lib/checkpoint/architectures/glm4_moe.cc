// GLM-4.5, 4.6 and Air: the routing of DeepSeek-V3; half of a head is rotated; queries and keys
// normalized a head where use_qk_norm says so.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  config.qkv_bias = fields.Bool("attention_bias", false);  // not of the output projection
  if (fields.Bool("use_qk_norm", false)) config.qk_norm = QkNorm::kPerHead;
  ReadDenseFirst(fields, config);
  MoeLayerSpec layer = ReadDeepseekExperts(fields, config, /*renormalize=*/true);
  layer.routing.kind = RoutingKind::kSigmoidGrouped;
  layer.routing.selection_bias = true;
  ExpectString(fields, "scoring_func", "sigmoid");
  ExpectString(fields, "topk_method", "noaux_tc");
  ReadGroups(fields, layer);
  AddMoeLayers(layer, config);
  config.names = DeepseekNames();
}

}  // namespace

const Architecture kGlm4Moe = {
    .model_type = "glm4_moe", .read = Read, .norm_eps = 1e-5, .partial_rotary = 0.5};

}  // namespace moert
