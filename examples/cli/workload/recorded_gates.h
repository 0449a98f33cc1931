// Gates of any width and hidden states at which they give the scores of a recorded trace: recorded
// routing for the experts of a published shape.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_RECORDED_GATES_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_RECORDED_GATES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"

namespace moert::cli {

/// The rows of all gates are orthonormal. A hidden state made of the rows of two layers, each times
/// a logit, thus has these logits under both gates: what the layer routes by, and what its hidden
/// state says of the next layer. Softmax routing without a selection bias.
class RecordedGates {
 public:
  /// InvalidArgument where the model has more experts, over all layers, than channels, where its
  /// layers differ in hidden size, or where it routes otherwise.
  static absl::StatusOr<RecordedGates> Create(const MoeModelSpec& model);

  /// The gate's matrix: [E, hidden].
  std::vector<float> Gate(int layer) const;

  /// scores: [rows, E], softmax over all experts; next_scores: [rows, E of the next layer], or
  /// empty. Returns [rows, hidden].
  std::vector<float> Hidden(int layer, int64_t rows, absl::Span<const float> scores,
                            absl::Span<const float> next_scores) const;

 private:
  RecordedGates() = default;
  void Add(int layer, const float* scores, float* out) const;

  int64_t hidden_ = 0;
  std::vector<int64_t> first_;            // by layer: row of its first expert; then their number
  std::vector<std::vector<float>> rows_;  // [expert of any layer][hidden]
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_RECORDED_GATES_H_
