// Qwen3-MoE: softmax then top-k, no shared expert, queries and keys normalized a head.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  ReadSparseStep(fields, config);
  config.qk_norm = QkNorm::kPerHead;
  AddMoeLayers(ReadSoftmaxExperts(fields, config, "moe_intermediate_size", /*renormalize=*/false),
               config);
  config.names = MlpNames();
}

}  // namespace

const Architecture kQwen3Moe = {
    .model_type = "qwen3_moe", .read = Read, .window_without_flag = false};

}  // namespace moert
