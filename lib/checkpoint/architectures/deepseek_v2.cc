// DeepSeek-V2 and V2-Lite: latent attention; softmax, then top-k, in V2 among the best groups;
// shared experts without gate.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadDenseFirst(fields, config);
  MoeLayerSpec layer = ReadDeepseekExperts(fields, config, /*renormalize=*/false);
  layer.routing.kind = RoutingKind::kSoftmaxTopK;
  ExpectString(fields, "scoring_func", "softmax");
  const std::string method = fields.String("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    ReadGroups(fields, layer);
  } else if (method == "greedy") {
    WithoutEffect(fields, {"n_group", "topk_group"}, "topk_method is greedy", &config.unused);
  } else {
    fields.Fail("topk_method", "legal for deepseek_v2 are greedy and group_limited_greedy");
  }
  // The published code and the reference library disagree about both at once.
  if (layer.routing.renormalize) {
    fields.Fail("norm_topk_prob", "legal for deepseek_v2 is false");
  }
  AddMoeLayers(layer, config);
  config.names = DeepseekNames();
  config.rope.interleaved = true;
}

}  // namespace

const Architecture kDeepseekV2 = {
    .model_type = "deepseek_v2", .read = Read, .latent_attention = true};

}  // namespace moert
