// DeepSeekMoE, the first generation (16B): dense first layers, softmax then top-k, shared experts
// without gate, plain attention.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  ReadDenseFirst(fields, config);
  ExpectString(fields, "scoring_func", "softmax");
  MoeLayerSpec layer = ReadDeepseekExperts(fields, config, /*renormalize=*/false);
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  if (layer.routing.scaling != 1) {
    fields.Fail("routed_scaling_factor", "legal is 1: the published code knows no other");
  }
  AddMoeLayers(layer, config);
  config.names = DeepseekNames();
}

}  // namespace

const Architecture kDeepseek = {.model_type = "deepseek", .read = Read};

}  // namespace moert
