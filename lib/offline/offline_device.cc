#include "offline/offline_device.h"

#include <fmt/format.h>

namespace moert {

absl::StatusOr<std::unique_ptr<OfflineDevice>> OpenOfflineDevice(BackendKind backend,
                                                                 const DeviceLog& log) {
  std::unique_ptr<OfflineDevice> none;
  if (backend == BackendKind::kCpu) return none;
  auto device = OfflineDevice::Open();
  if (device.ok()) {
    if (log) log("the CUDA device searches for scales, rounds by GPTQ and multiplies experts");
    return device;
  }
  if (backend == BackendKind::kCuda) {
    return absl::Status(device.status().code(),
                        fmt::format("backend cuda: {}; legal are cpu and auto",
                                    std::string(device.status().message())));
  }
  if (CudaStatus().ok() && log) {
    log(fmt::format("note: all on the CPU: {}", std::string(device.status().message())));
  }
  return none;
}

void LogDeviceError(const OfflineDevice* device, const DeviceLog& log) {
  if (device == nullptr || device->first_error().ok() || !log) return;
  log(fmt::format("note: the device failed, and the CPU did the rest: {}",
                  std::string(device->first_error().message())));
}

}  // namespace moert
