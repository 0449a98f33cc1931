// dots.llm1: the routing of DeepSeek-V3 with one group, shared experts without gate; queries and
// keys normalized a head.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  config.qk_norm = QkNorm::kPerHead;
  ReadDenseFirst(fields, config);
  MoeLayerSpec layer = ReadDeepseekExperts(fields, config, /*renormalize=*/false);
  layer.routing.kind = RoutingKind::kSigmoidGrouped;
  layer.routing.selection_bias = true;
  ExpectString(fields, "scoring_func", "sigmoid");
  ExpectString(fields, "topk_method", "noaux_tc");
  ReadGroups(fields, layer);
  AddMoeLayers(layer, config);
  config.names = DeepseekNames();
}

}  // namespace

const Architecture kDots1 = {.model_type = "dots1", .read = Read};

}  // namespace moert
