// Translates a RecordLayout into the description that the kernels read.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_FORMAT_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_FORMAT_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "exec/cuda/products/prompt_plan.h"
#include "kernels/cuda/device_types.h"
#include "moert/scheme.h"
#include "moert/source/expert_source.h"

namespace moert::cuda {

/// Unimplemented for schemes without a kernel; the message names the legal ones.
absl::StatusOr<DeviceFormat> MakeDeviceFormat(
    const RecordLayout& layout, ActivationNumerics numerics = ActivationNumerics::kBF16);

/// Checks all experts of a model; the message names the first expert without a kernel.
absl::Status CheckDeviceFormats(const ExpertSource& source, absl::Span<const int> versions);

/// The forms of operands that the products of a model read.
struct OperandUse {
  bool x[kOperands] = {};
  bool wide_h = false;  // some h needs more than rounding before down, so it is kept in fp32
  PromptFormats prompt;
};
absl::StatusOr<OperandUse> OperandsOf(const ExpertSource& source, absl::Span<const int> versions,
                                      ActivationNumerics numerics);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_FORMAT_H_
