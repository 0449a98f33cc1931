// Small inputs of the readers, and how a test reads them whole.
#ifndef MOERT_TESTS_SUPPORT_SMALL_INPUTS_H_
#define MOERT_TESTS_SUPPORT_SMALL_INPUTS_H_

#include <string>
#include <vector>

#include "checkpoint/checkpoint_experts.h"
#include "fuzz/fuzz.h"
#include "moert/offline/calibration.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"

namespace moert::test {

/// Records of everything that a quantized checkpoint holds.
inline absl::Status ReadQuantized(const std::string& config_text, const std::string& file) {
  auto config = ParseHfConfig(config_text, "config.json");
  if (!config.ok()) return config.status();
  if (config->quantization.form == StoredWeights::kMxfp4) {
    config->names.interleaved = config->moe.layers[0].expert_bias = true;
  }
  fuzz::MemoryEnv env(file);
  const auto checkpoint = Checkpoint::Open("model.safetensors", &env);
  if (!checkpoint.ok()) return checkpoint.status();
  const auto experts = CheckpointExperts::Create(checkpoint->get(), &*config);
  if (!experts.ok()) return experts.status();
  const MoeLayerSpec& layer = config->moe.layers[0];
  for (int e = 0; e < layer.num_experts; ++e) {
    const auto layout = ExpertRecordLayout(layer, (*experts)->stored(0, e));
    if (!layout.ok()) return layout.status();
    std::vector<std::byte> record(static_cast<size_t>(layout->bytes));
    const absl::Status status = (*experts)->ReadRecord(0, e, *layout, record.data());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

/// A model of one layer with two experts.
inline Calibration SmallCalibration() {
  Calibration c;
  MoeLayerSpec layer;
  layer.num_experts = 2;
  layer.hidden = layer.intermediate = 64;
  layer.routing.top_k = 1;
  c.model.architecture = "test";
  c.model.layers = {layer};
  c.tokens = c.window = 8;
  c.schemes = {*Scheme::Parse("w4a16_g128")};
  c.layers = {{{1, 2}, {0.5, 0.5}, 1, 1, std::vector<double>(6, 0.25), {}}};
  return c;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_SMALL_INPUTS_H_
