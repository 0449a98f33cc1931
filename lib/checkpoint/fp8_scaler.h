// The scales of fp8 weights.
#ifndef MOERT_LIB_CHECKPOINT_FP8_SCALER_H_
#define MOERT_LIB_CHECKPOINT_FP8_SCALER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/checkpoint.h"

namespace moert {

/// Multiplies fp8 values by the scales of their blocks, rows or matrix.
class Fp8Scaler {
 public:
  /// Empty if the checkpoint has no scales for `weight`. Scales are finite.
  static absl::StatusOr<Fp8Scaler> Load(const Checkpoint& checkpoint, const TensorInfo& weight);
  bool empty() const { return scales_.empty(); }

  /// values: elements [first, first + count) of the weight.
  void Apply(int64_t first, size_t count, float* values) const;
  /// The scale of one element; row numbers continue across several matrices.
  float ScaleOf(int64_t row, int64_t col) const;

 private:
  int64_t rows_ = 0, cols_ = 0;              // of a matrix
  int64_t block_rows_ = 0, block_cols_ = 0;  // that share a scale
  int64_t scale_rows_ = 0, scale_cols_ = 0;  // of a matrix
  std::vector<float> scales_;
};

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_FP8_SCALER_H_
