#include "checkpoint/decoder_mixers.h"

#include <fmt/format.h>

#include "checkpoint/moe_config.h"

namespace moert {
namespace {

// layer_types, or every full_attention_interval-th layer attends.
void ReadDeltaLayers(ConfigFields& fields, HfConfig& config) {
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

}  // namespace

// no_rope_layers has a 1 where a layer has RoPE; without it every no_rope_layer_interval-th has
// none.
void ReadChunks(ConfigFields& fields, HfConfig& config) {
  const size_t layers = config.mixers.size();
  const std::vector<int64_t> rotated = fields.Ints("no_rope_layers", 0, 1);
  const int64_t interval = fields.Int("no_rope_layer_interval", 1, kMaxLayerCount, 4);
  const int64_t chunk = fields.Int("attention_chunk_size", 0, kMaxPositions, 0);
  if (!rotated.empty() && rotated.size() != layers) {
    fields.Fail("no_rope_layers", fmt::format("legal is a list of {} numbers, or none", layers));
    return;
  }
  const auto types = fields.Find("layer_types");
  for (size_t i = 0; i < layers; ++i) {
    MixerConfig& mixer = config.mixers[i];
    mixer.rotate = rotated.empty() ? static_cast<int64_t>(i + 1) % interval != 0 : rotated[i] != 0;
    if (mixer.rotate && chunk > 0) mixer = {MixerKind::kChunk, chunk};
  }
  if (!types) return;
  auto mixer = config.mixers.begin();
  bool same = types->is_array() && types->size() == layers;
  for (const JsonValue type : types->elements()) {
    if (!same) break;
    const bool chunked = mixer->kind == MixerKind::kChunk || (mixer->rotate && chunk == 0);
    same = type.Is(chunked ? "chunked_attention" : "full_attention");
    ++mixer;
  }
  if (same) return;
  fields.Fail("layer_types",
              fmt::format("legal are {} names: chunked_attention where no_rope_layers has a layer "
                          "with RoPE, else full_attention",
                          layers));
}

void ReadDeltaNet(ConfigFields& fields, HfConfig& config) {
  ReadDeltaLayers(fields, config);
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

// Which layers look only at the last sliding_window positions.
void ReadSlidingWindow(bool unflagged, ConfigFields& fields, HfConfig& config) {
  const size_t layers = static_cast<size_t>(config.num_hidden_layers);
  config.mixers.assign(layers, {});
  const int64_t width = fields.Int("sliding_window", 0, kMaxPositions, 0);
  const bool used = fields.Bool("use_sliding_window", unflagged);
  const int64_t first = fields.Int("max_window_layers", 0, kMaxLayerCount, 0);
  const int64_t window = used ? width : 0;
  const MixerConfig windowed{MixerKind::kWindow, window};
  if (const auto types = fields.Find("layer_types")) {
    if (!types->is_array() || types->size() != layers) {
      return fields.Fail("layer_types", fmt::format("legal is a list of {} names", layers));
    }
    auto layer = config.mixers.begin();
    for (const JsonValue type : types->elements()) {
      if (type.Is("sliding_attention")) {
        if (window == 0) {
          return fields.Fail("layer_types", "sliding_attention needs a sliding_window in force");
        }
        *layer = windowed;
      } else if (!type.Is("full_attention")) {
        return fields.Fail("layer_types", "legal names are full_attention and sliding_attention");
      }
      ++layer;
    }
    return;
  }
  if (window == 0) return;
  for (size_t i = static_cast<size_t>(first); i < layers; ++i) config.mixers[i] = windowed;
}

}  // namespace moert
