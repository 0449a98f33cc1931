// Stands in for the search on a device in builds without CUDA.
#include "moert/backend.h"
#include "offline/offline_device.h"

namespace moert {

absl::StatusOr<std::unique_ptr<OfflineDevice>> OfflineDevice::Open() { return CudaStatus(); }

}  // namespace moert
