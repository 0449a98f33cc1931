#include "moert/mixed_group_gemm.h"

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "gemm/cpu_gemm.h"
#include "kernels/cpu/kernel_set.h"

namespace moert {

absl::StatusOr<std::unique_ptr<MixedGroupGemm>> MixedGroupGemm::Create(
    ThreadPool* pool, absl::string_view kernels, ActivationNumerics numerics) try {
  if (pool == nullptr) return absl::InvalidArgumentError("MixedGroupGemm needs a thread pool");
  if (numerics < ActivationNumerics::kBF16 || numerics > ActivationNumerics::kFp8) {
    return InvalidArgument("unknown activation numerics {}", static_cast<int>(numerics));
  }
  MOERT_ASSIGN_OR_RETURN(const kernels::KernelSet* set, kernels::FindKernelSet(kernels));
  return std::unique_ptr<MixedGroupGemm>(new gemm::CpuGemm(pool, *set, numerics));
} catch (...) {
  return ExceptionStatus("creating a product");
}

std::vector<std::string> MixedGroupGemm::KernelNames() {
  std::vector<std::string> names;
  for (const kernels::KernelSet* set : kernels::SupportedKernelSets())
    names.emplace_back(set->name);
  return names;
}

}  // namespace moert
