// Qwen3-Next: three layers of gated delta net to one of gated attention; a quarter of a head is
// rotated; norms around zero; softmax then top-k, one gated shared expert.
#include <fmt/format.h>

#include "checkpoint/architectures/architecture.h"

namespace moert {
namespace {

// layer_types, or every full_attention_interval-th layer attends.
void ReadLayers(ConfigFields& fields, HfConfig& config) {
  const auto types = fields.Find("layer_types");
  const int64_t interval = fields.Int("full_attention_interval", 1, kMaxLayerCount, 4);
  const size_t layers = config.mixers.size();
  if (types && (!types->is_array() || types->size() != layers)) {
    return fields.Fail("layer_types", fmt::format("legal is a list of {} names", layers));
  }
  for (size_t i = 0; i < layers; ++i) {
    if (static_cast<int64_t>(i + 1) % interval != 0) config.mixers[i].kind = MixerKind::kDeltaNet;
  }
  if (!types) return;
  auto mixer = config.mixers.begin();
  for (const JsonValue type : types->elements()) {
    const bool delta = type.Is("linear_attention");
    if (!delta && !type.Is("full_attention")) {
      return fields.Fail("layer_types", "legal names are full_attention and linear_attention");
    }
    (mixer++)->kind = delta ? MixerKind::kDeltaNet : MixerKind::kFull;
  }
}

void ReadDeltaNet(ConfigFields& fields, HfConfig& config) {
  DeltaNetConfig& net = config.delta_net;
  net.key_heads = static_cast<int>(fields.Int("linear_num_key_heads", 1, kMaxHeads, 16));
  net.value_heads = static_cast<int>(fields.Int("linear_num_value_heads", 1, kMaxHeads, 32));
  net.key_dim = fields.Int("linear_key_head_dim", 1, kMaxHeadDim, 128);
  net.value_dim = fields.Int("linear_value_head_dim", 1, kMaxHeadDim, 128);
  net.kernel = fields.Int("linear_conv_kernel_dim", 1, 256, 4);
  if (net.value_heads % net.key_heads != 0) {
    fields.Fail("linear_num_value_heads",
                fmt::format("legal is a multiple of linear_num_key_heads ({})", net.key_heads));
  }
}

void Read(ConfigFields& fields, HfConfig& config) {
  ReadAttentionBias(fields, config);
  ReadSparseStep(fields, config);
  ReadLayers(fields, config);
  ReadDeltaNet(fields, config);
  config.norm = NormKind::kRmsOffset;
  config.qk_norm = QkNorm::kPerHead;
  config.attention_gate = true;
  fields.Expect("attn_output_gate", true);
  AddGatedSharedLayers(fields, config, /*renormalize=*/true);
}

}  // namespace

const Architecture kQwen3Next = {
    .model_type = "qwen3_next", .read = Read, .partial_rotary = 0.25, .own_layer_types = true};

}  // namespace moert
