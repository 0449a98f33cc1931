#include "host/blocks/mixer.h"

#include <fmt/format.h>

#include "host/blocks/compressed_attention.h"
#include "host/blocks/gated_delta_net.h"
#include "host/blocks/grouped_attention.h"
#include "host/blocks/latent_attention.h"
#include "host/blocks/panel_gemm.h"

namespace moert::host {

absl::StatusOr<std::unique_ptr<Mixer>> LoadMixer(const Checkpoint& checkpoint,
                                                 const HfConfig& config, int layer,
                                                 const Rope* rope) {
  if (config.mixers[layer].kind == MixerKind::kDeltaNet) {
    return GatedDeltaNet::Load(checkpoint, config, layer);
  }
  if (config.compressed.q_rank > 0) {
    return CompressedAttention::Load(checkpoint, config, layer, rope);
  }
  if (config.latent.kv_rank > 0) return LatentAttention::Load(checkpoint, config, layer, rope);
  return GroupedAttention::Load(checkpoint, config, layer, rope);
}

std::string LayerPrefix(const HfConfig& config, int layer) {
  return fmt::format("{}layers.{}.", config.tensor_body, layer);
}

absl::Status CheckPanels(const char* field, int64_t value) {
  if (value % kPanelWidth == 0) return absl::OkStatus();
  return absl::UnimplementedError(fmt::format(
      "config.json: {} {}; the example decoder runs multiples of {}", field, value, kPanelWidth));
}

}  // namespace moert::host
