#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/config_account.h"
#include "checkpoint/decoder_config.h"
#include "checkpoint/moe_config.h"

namespace moert {
namespace {

// Reads layer_types; without it every full_attention_interval-th layer attends.
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

void PlaceByTypes(JsonValue types, const MixerConfig& windowed, ConfigFields& fields,
                  HfConfig& config) {
  if (!types.is_array() || types.size() != config.mixers.size()) {
    return fields.Fail("layer_types",
                       fmt::format("legal is a list of {} names", config.mixers.size()));
  }
  auto layer = config.mixers.begin();
  for (const JsonValue type : types.elements()) {
    if (type.Is("sliding_attention")) {
      if (windowed.span == 0) {
        return fields.Fail("layer_types", "sliding_attention needs a sliding_window in force");
      }
      *layer = windowed;
    } else if (!type.Is("full_attention")) {
      return fields.Fail("layer_types", "legal names are full_attention and sliding_attention");
    }
    ++layer;
  }
}

// The number of positions that a layer with a window sees, its own included; 0: no window.
int64_t WindowWidth(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const std::string before = family.Present("window_before");
  const int64_t width = fields.Int("sliding_window", 0, kMaxPositions, 0);
  if (before.empty()) return width;
  WithoutEffect(fields, {"sliding_window"}, "another field of the window is there, too",
                &config.unused);
  return fields.Int(before.c_str(), 0, kMaxPositions - 1) + 1;
}

// Places windows by layer_types; by one number per layer; by full_every (every such layer sees all
// positions); or in the first layers.
void PlaceWindows(const FamilyFields& family, const MixerConfig& windowed, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const size_t layers = config.mixers.size();
  const int64_t first = fields.Int("max_window_layers", 0, kMaxLayerCount, 0);
  const std::string flags = family.Present("window_flags");
  if (const auto types = fields.Find("layer_types")) {
    for (const std::string& other : {flags, family.Present("full_every")}) {
      if (other.empty()) continue;
      WithoutEffect(fields, {other.c_str()}, "layer_types is there, too", &config.unused);
    }
    return PlaceByTypes(*types, windowed, fields, config);
  }
  if (!flags.empty()) {
    const std::vector<int64_t> flag = fields.Ints(flags.c_str(), 0, 1);
    if (flag.size() != layers || (windowed.span == 0 && std::count(flag.begin(), flag.end(), 1))) {
      return fields.Fail(
          flags.c_str(),
          fmt::format("legal is a list of {} numbers, 1 where there is a window", layers));
    }
    for (size_t i = 0; i < layers; ++i) {
      if (flag[i] != 0) config.mixers[i] = windowed;
    }
    return;
  }
  if (windowed.span == 0) {
    const std::string every = family.Present("full_every");
    if (every.empty()) return;
    return WithoutEffect(fields, {every.c_str()}, "there is no window", &config.unused);
  }
  for (size_t i = static_cast<size_t>(first); i < layers; ++i) config.mixers[i] = windowed;
  if (!family.family().Find("full_every")) return;
  const auto every = static_cast<size_t>(family.Int("full_every", 1, kMaxLayerCount, 1));
  for (size_t i = every - 1; i < layers; i += every) config.mixers[i] = {};
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

void ReadSlidingWindow(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const int64_t width = WindowWidth(family, config);
  const bool used = fields.Bool("use_sliding_window", !family.family().Flag("window_needs_flag"));
  const MixerConfig windowed{MixerKind::kWindow, used ? width : 0};
  PlaceWindows(family, windowed, config);
  if (family.family().Flag("last_sees_all")) config.mixers.back() = {};
  if (width == 0 || !family.family().Flag("only_windows_rotate")) return;
  for (MixerConfig& mixer : config.mixers) mixer.rotate = mixer.kind == MixerKind::kWindow;
}

}  // namespace moert
