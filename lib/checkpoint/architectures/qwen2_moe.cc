// Qwen1.5-MoE and Qwen2-MoE: softmax then top-k, one gated shared expert, bias on q, k and v.
#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

void Read(ConfigFields& fields, HfConfig& config) {
  config.qkv_bias = fields.Bool("qkv_bias", true);
  ReadSparseStep(fields, config);
  AddGatedSharedLayers(fields, config, /*renormalize=*/false);
}

}  // namespace

const Architecture kQwen2Moe = {
    .model_type = "qwen2_moe", .read = Read, .window_without_flag = false};

}  // namespace moert
