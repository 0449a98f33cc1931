// Stands in for the search on a device in builds without CUDA.
#include "moert/backend.h"
#include "offline/device_fits.h"

namespace moert {

absl::StatusOr<std::unique_ptr<DeviceFits>> DeviceFits::Open() { return CudaStatus(); }

}  // namespace moert
