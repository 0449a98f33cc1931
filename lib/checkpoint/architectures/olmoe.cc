// OLMoE: softmax then top-k, no shared expert; queries and keys normalized over all heads together,
// then clipped.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  config.qk_norm = QkNorm::kFull;
  if (fields.Has("clip_qkv")) config.clip_qkv = fields.Real("clip_qkv", 1e-6, 1e6);
  AddMoeLayers(ReadSoftmaxExperts(fields, config, "intermediate_size", /*renormalize=*/false),
               config);
  config.names = MlpNames();
}

}  // namespace

const Architecture kOlmoe = {.model_type = "olmoe", .read = Read, .norm_eps = 1e-5};

}  // namespace moert
