// DeviceProducts by cuBLAS.
#ifndef MOERT_EXAMPLES_HOST_CUDA_CUBLAS_PRODUCTS_H_
#define MOERT_EXAMPLES_HOST_CUDA_CUBLAS_PRODUCTS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "host/device_products.h"

namespace moert::host {

/// DeviceProducts::Open.
absl::StatusOr<std::unique_ptr<DeviceProducts>> OpenCublasProducts(int lanes);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_CUBLAS_PRODUCTS_H_
