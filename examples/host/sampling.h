// From logits to the next token.
#ifndef MOERT_EXAMPLES_HOST_SAMPLING_H_
#define MOERT_EXAMPLES_HOST_SAMPLING_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace moert::host {

/// Index of the highest logit, the lowest index among equals. Internal if a logit is NaN or none is
/// finite.
absl::StatusOr<int32_t> ArgMax(absl::Span<const float> logits);

/// ln sum exp(logits), in fp64.
double LogSumExp(absl::Span<const float> logits);

/// How the next token is drawn. Applied in the order of the fields.
struct SamplingOptions {
  /// Divides the positive logits of tokens that the sequence already contains, and multiplies their
  /// other logits (Keskar et al., 2019). 1: off.
  double repetition_penalty = 1.0;
  double temperature = 0.0;  // 0: the likeliest token; the fields below are ignored
  double top_p = 1.0;        // the likeliest tokens that together have this probability; 1: all
  double min_p = 0.0;        // tokens with at least this share of the highest probability; 0: all
  uint64_t seed = 0;

  /// Names the first field out of range, its value and the legal range.
  absl::Status Validate() const;
};

class Sampler {
 public:
  /// The same options draw the same tokens on every platform.
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  /// `sequence`: the prompt and the tokens generated so far, for the penalty; ids outside the
  /// logits are ignored.
  absl::StatusOr<int32_t> Next(absl::Span<const float> logits,
                               absl::Span<const int32_t> sequence = {});

 private:
  const SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<float> logits_;
  std::vector<double> weights_;
  std::vector<int32_t> order_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_SAMPLING_H_
