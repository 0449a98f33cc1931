#include "offline/device_fits.h"

#include <fmt/format.h>

#include <utility>

namespace moert {

absl::StatusOr<std::unique_ptr<DeviceFits>> OpenDeviceFits(BackendKind backend,
                                                           const DeviceLog& log) {
  std::unique_ptr<DeviceFits> none;
  if (backend == BackendKind::kCpu) return none;
  auto device = DeviceFits::Open();
  if (device.ok()) {
    if (log) log("scales are searched for on the CUDA device");
    return device;
  }
  if (backend == BackendKind::kCuda) {
    return absl::Status(device.status().code(),
                        fmt::format("backend cuda: {}; legal are cpu and auto",
                                    std::string(device.status().message())));
  }
  if (CudaStatus().ok() && log) {
    log(fmt::format("note: scales are searched for on the CPU: {}",
                    std::string(device.status().message())));
  }
  return none;
}

void LogDeviceError(const DeviceFits* device, const DeviceLog& log) {
  if (device == nullptr || device->first_error().ok() || !log) return;
  log(fmt::format("note: the device failed, and the CPU searched for the rest: {}",
                  std::string(device->first_error().message())));
}

}  // namespace moert
