#include "host/cuda/device_norm.h"

#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<DeviceNorm> DeviceNorm::Load(const Checkpoint& checkpoint, const std::string& name,
                                            NormKind kind, int64_t width,
                                            const std::vector<int64_t>& order) {
  DeviceNorm norm;
  MOERT_ASSIGN_OR_RETURN(const auto stored, checkpoint.ReadF32(name + ".weight", {width}));
  std::vector<float> weight = stored;
  for (size_t i = 0; i < order.size(); ++i) weight[i] = stored[static_cast<size_t>(order[i])];
  if (kind == NormKind::kRmsOffset) {
    for (float& w : weight) w += 1.0f;
  }
  MOERT_ASSIGN_OR_RETURN(norm.weight, ToDevice(weight));
  if (kind == NormKind::kLayer) {
    MOERT_ASSIGN_OR_RETURN(const auto bias, checkpoint.ReadF32(name + ".bias", {width}));
    MOERT_ASSIGN_OR_RETURN(norm.bias, ToDevice(bias));
  }
  return norm;
}

absl::StatusOr<DeviceNorm> DeviceNorm::Ones(int64_t width) {
  DeviceNorm norm;
  MOERT_ASSIGN_OR_RETURN(norm.weight,
                         ToDevice(std::vector<float>(static_cast<size_t>(width), 1.0f)));
  return norm;
}

}  // namespace moert::host
