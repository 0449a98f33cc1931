// Kernel sets: tables of kernels that one CPU can run, chosen once by what it supports or by name.
#ifndef MOERT_KERNELS_CPU_KERNEL_SET_H_
#define MOERT_KERNELS_CPU_KERNEL_SET_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cpu/block_gemm.h"
#include "moert/mixed_group_gemm.h"

namespace moert::kernels {

/// The kernels for one kind of activations. A null gemm means that the set has none for it.
struct ActivationKernels {
  int64_t bytes_per_k16 = 0;  // of a packed activation row
  PackFn pack = nullptr;
  BlockGemmFn gemm_bf16 = nullptr;  // by weight scheme
};

struct KernelSet {
  const char* name;
  bool supported;                    // by this CPU and its operating system
  ActivationKernels activations[3];  // by ActivationNumerics
  GluFn glu[3];                      // by Activation

  const ActivationKernels& For(ActivationNumerics numerics) const {
    return activations[static_cast<int>(numerics)];
  }
};

/// The sets this CPU can run, best first; "reference" is always last. Thread-safe.
const std::vector<const KernelSet*>& SupportedKernelSets();

/// "auto": the first of SupportedKernelSets that has kernels for `numerics`. Else the set of that
/// name; the error lists the names that are legal here.
absl::StatusOr<const KernelSet*> FindKernelSet(absl::string_view name, ActivationNumerics numerics);

/// "bf16", "f32", "int8".
absl::string_view ActivationNumericsName(ActivationNumerics numerics);

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_KERNEL_SET_H_
