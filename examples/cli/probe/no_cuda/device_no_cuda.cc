// A build without CUDA.
#include "cli/probe/device.h"

namespace moert::cli {

absl::StatusOr<DeviceRates> ProbeDeviceRates(double) {
  return absl::UnavailableError("built without CUDA");
}

absl::StatusOr<DeviceLayers> ProbeDeviceLayers(const Shape&, const std::vector<int>&, int) {
  return absl::UnavailableError("built without CUDA");
}

}  // namespace moert::cli
