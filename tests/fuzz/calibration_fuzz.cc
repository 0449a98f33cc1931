// A calibration, whole and as a line of one layer.
#include "fuzz/fuzz.h"
#include "moert/offline/calibration.h"
#include "pack/calibration_lines.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = fuzz::SealedIfOdd(data, size);
  constexpr int kExperts = 2;
  constexpr size_t kSchemes = 2;
  const auto line = LayerCalibrationFromLine(bytes, kExperts, kSchemes, "fuzz");
  if (line.ok()) {
    FUZZ_REQUIRE(line->selections.size() == kExperts && line->weight_sums.size() == kExperts);
    FUZZ_REQUIRE(line->delta.size() == kExperts * kLinearBlocks * kSchemes);
  }
  fuzz::MemoryEnv env(bytes);
  const auto calibration = ReadCalibration("fuzz", &env);
  if (!calibration.ok()) return 0;
  FUZZ_REQUIRE(calibration->model.Validate().ok());
  FUZZ_REQUIRE(calibration->layers.size() == calibration->model.layers.size());
  for (size_t l = 0; l < calibration->layers.size(); ++l) {
    const LayerCalibration& layer = calibration->layers[l];
    const auto experts = static_cast<size_t>(calibration->model.layers[l].num_experts);
    FUZZ_REQUIRE(layer.selections.size() == experts && layer.weight_sums.size() == experts);
    FUZZ_REQUIRE(layer.delta.size() == experts * kLinearBlocks * calibration->schemes.size());
  }
  // An accepted file is written and read as the same.
  const std::string text = CalibrationToJson(*calibration);
  fuzz::MemoryEnv again(text);
  const auto second = ReadCalibration("fuzz", &again);
  FUZZ_REQUIRE(second.ok());
  FUZZ_REQUIRE(CalibrationToJson(*second) == text);
  return 0;
}
