#include "host/device_products.h"

#ifdef MOERT_HOST_CUDA
#include "host/cuda/cublas_products.h"
#endif

namespace moert::host {

absl::StatusOr<std::unique_ptr<DeviceProducts>> DeviceProducts::Open(int lanes) {
#ifdef MOERT_HOST_CUDA
  return OpenCublasProducts(lanes);
#else
  static_cast<void>(lanes);
  return absl::UnimplementedError("this build of the host has no CUDA");
#endif
}

}  // namespace moert::host
