// DeepSeekMoE, the first generation (16B): dense first layers, softmax then top-k, shared experts
// without gate, plain attention.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  ReadDenseFirst(fields, config);
  if (const std::string score = fields.String("scoring_func", "softmax"); score != "softmax") {
    fields.Fail("scoring_func", "legal for deepseek is softmax");
  }
  MoeLayerSpec layer = ReadDeepseekExperts(fields, config, /*renormalize=*/false);
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  layer.routing.scaling = 1;  // its code knows no scaling factor
  AddMoeLayers(layer, config);
  config.names = DeepseekNames();
}

}  // namespace

const Architecture kDeepseek = {.model_type = "deepseek", .read = Read};

}  // namespace moert
