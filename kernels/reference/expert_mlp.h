// The oracle: one expert applied to one token, in the plainest arithmetic.
#ifndef MOERT_KERNELS_REFERENCE_EXPERT_MLP_H_
#define MOERT_KERNELS_REFERENCE_EXPERT_MLP_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "moert/mixed_group_gemm.h"
#include "moert/model.h"
#include "moert/scheme.h"

namespace moert::kernels {

/// act(x), in double precision: silu x / (1 + e^-x), gelu x / 2 (1 + erf(x / sqrt 2)), or gelu's
/// tanh approximation.
double ApplyActivation(Activation activation, double x);

/// out = down (act(gate x) * (up x)) for the expert of a packed record; x and out are [hidden].
/// Sums are in double precision; x and h are rounded to bf16 under kBF16. `contribution`, if not
/// null, receives for each output the Euclidean norm of its terms down[i] * h[i]: the scale that a
/// tolerance on h's rounding has to be measured in. Unimplemented for other schemes than bf16.
absl::Status ReferenceExpertMlp(const std::byte* record, const RecordLayout& layout,
                                Activation activation, ActivationNumerics numerics, const float* x,
                                float* out, float* contribution = nullptr);

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_REFERENCE_EXPERT_MLP_H_
