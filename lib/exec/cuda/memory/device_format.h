// RecordLayout -> what the kernels need of it.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_FORMAT_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_FORMAT_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "exec/cuda/products/prompt_plan.h"
#include "kernels/cuda/device_types.h"
#include "moert/scheme.h"
#include "moert/source/expert_source.h"

namespace moert::cuda {

/// Unimplemented, naming what is legal, for schemes without a kernel.
absl::StatusOr<DeviceFormat> MakeDeviceFormat(
    const RecordLayout& layout, ActivationNumerics numerics = ActivationNumerics::kBF16);

/// The same for all experts of a model, naming the first that has none.
absl::Status CheckDeviceFormats(const ExpertSource& source, absl::Span<const int> versions);

/// The products of a model read these.
struct OperandUse {
  bool x[kOperands] = {};
  bool wide_h = false;  // some h is more than rounded before down
  PromptFormats prompt;
};
absl::StatusOr<OperandUse> OperandsOf(const ExpertSource& source, absl::Span<const int> versions,
                                      ActivationNumerics numerics);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_FORMAT_H_
