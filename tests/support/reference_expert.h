// The oracle: one expert applied to one token, in the plainest arithmetic.
#ifndef MOERT_TESTS_SUPPORT_REFERENCE_EXPERT_H_
#define MOERT_TESTS_SUPPORT_REFERENCE_EXPERT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/scheme.h"

namespace moert::test {

/// act(x), in double precision: silu x / (1 + e^-x), gelu x / 2 (1 + erf(x / sqrt 2)), gelu's tanh
/// approximation, or relu2 max(x, 0)^2.
double ApplyActivation(Activation activation, double x);

/// h of one channel's products of gate and up, in double precision (moert/model.h).
double ApplyActivation(const ExpertActivation& activation, double gate, double up);

/// An expert of a packed record, its weights widened once for many tokens. Const calls may run at
/// the same time.
class ReferenceExpert {
 public:
  static absl::StatusOr<ReferenceExpert> Make(const std::byte* record, const RecordLayout& layout);
  /// As ReferenceExpertMlp.
  void Apply(const ExpertActivation& activation, ActivationNumerics numerics, const float* x,
             float* out, float* tolerance = nullptr) const;

 private:
  struct Matrix {
    Scheme scheme;
    std::vector<float> weights;
    std::vector<float> biases;  // empty: none
    int64_t rows = 0;
    int64_t k = 0;

    double Dot(int64_t row, const std::vector<double>& x) const;
    double Product(int64_t row, const std::vector<double>& x) const;  // with the bias
  };
  static absl::StatusOr<Matrix> Widen(const std::byte* record, const MatrixLayout& layout);

  Matrix gate_, up_, down_;
  bool hadamard_ = false;
};

/// out = down (act(gate x) * (up x)) for the expert of a packed record of any schemes; x and out
/// are [hidden]. Weights are widened, sums are in double precision. x and h are rounded as the
/// schemes and `numerics` have it. `tolerance`, if not null, receives for each output how far a sum
/// in fp32 may lie from it: a few ulp of the norm of its terms, and what the few channels of h cost
/// that lie between two representable numbers and are then rounded to the other one.
absl::Status ReferenceExpertMlp(const std::byte* record, const RecordLayout& layout,
                                const ExpertActivation& activation, ActivationNumerics numerics,
                                const float* x, float* out, float* tolerance = nullptr);

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_REFERENCE_EXPERT_H_
