// DeepSeek-V3, R1 and Kimi-K2: latent attention; sigmoid scores, a selection bias, top-k among the
// best groups; shared experts without gate. The layers that predict further tokens are not read.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadDenseFirst(fields, config);
  MoeLayerSpec layer = ReadDeepseekExperts(fields, config, /*renormalize=*/true);
  layer.routing.kind = RoutingKind::kSigmoidGrouped;
  layer.routing.selection_bias = true;
  ExpectString(fields, "scoring_func", "sigmoid");
  ExpectString(fields, "topk_method", "noaux_tc");
  ReadGroups(fields, layer);
  AddMoeLayers(layer, config);
  config.names = DeepseekNames();
  for (std::string* name : {&config.names.expert, &config.names.router, &config.names.shared_expert,
                            &config.names.selection_bias}) {
    *name = config.tensor_prefix + *name;
  }
  config.rope.interleaved = fields.Bool("rope_interleave", true);
}

// Kimi-K2.5 and later: a model for text and pictures around Kimi-K2.
constexpr Architecture kNested = {.model_type = "kimi_k25",
                                  .read = Read,
                                  .latent_attention = true,
                                  .text_config = "text_config",
                                  .tensor_prefix = "language_model."};

}  // namespace

const Architecture kDeepseekV3 = {
    .model_type = "deepseek_v3", .read = Read, .latent_attention = true};

const Architecture kKimiK25 = kNested;

const Architecture kKimiK2 = {.model_type = "kimi_k2", .read = Read, .latent_attention = true};

}  // namespace moert
