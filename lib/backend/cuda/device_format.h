// RecordLayout -> what the kernels need of it.
#ifndef MOERT_LIB_BACKEND_CUDA_DEVICE_FORMAT_H_
#define MOERT_LIB_BACKEND_CUDA_DEVICE_FORMAT_H_

#include "absl/status/statusor.h"
#include "kernels/cuda/device_types.h"
#include "moert/scheme.h"

namespace moert::cuda {

/// Unimplemented, naming what is legal, for schemes without a kernel.
absl::StatusOr<DeviceFormat> MakeDeviceFormat(const RecordLayout& layout);

}  // namespace moert::cuda

#endif  // MOERT_LIB_BACKEND_CUDA_DEVICE_FORMAT_H_
