#ifndef MOERT_LIB_GEMM_CHECK_PROBLEM_H_
#define MOERT_LIB_GEMM_CHECK_PROBLEM_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/kernel_set.h"
#include "moert/mixed_group_gemm.h"

namespace moert::gemm {

/// Whether the kernels can multiply problem `index` of a call with `rows` rows of x.
absl::Status CheckProblem(const ExpertProblem& problem, size_t index, int64_t rows, int64_t hidden,
                          const kernels::KernelSet& set, ActivationNumerics numerics);

}  // namespace moert::gemm

#endif  // MOERT_LIB_GEMM_CHECK_PROBLEM_H_
