// From logits to the next token.
#ifndef MOERT_EXAMPLES_HOST_SAMPLING_H_
#define MOERT_EXAMPLES_HOST_SAMPLING_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace moert::host {

/// Index of the highest logit, the lowest index among equals. Internal if a logit is NaN or none is
/// finite.
absl::StatusOr<int32_t> ArgMax(absl::Span<const float> logits);

/// ln sum exp(logits), in fp64.
double LogSumExp(absl::Span<const float> logits);

class Sampler {
 public:
  /// temperature 0 is greedy. The same seed draws the same tokens on every platform.
  Sampler(double temperature, uint64_t seed) : temperature_(temperature), random_(seed) {}

  absl::StatusOr<int32_t> Next(absl::Span<const float> logits);

 private:
  const double temperature_;
  std::mt19937_64 random_;
  std::vector<double> weights_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_SAMPLING_H_
