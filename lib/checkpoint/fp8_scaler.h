// The scales of fp8 weights in blocks.
#ifndef MOERT_LIB_CHECKPOINT_FP8_SCALER_H_
#define MOERT_LIB_CHECKPOINT_FP8_SCALER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/checkpoint.h"

namespace moert {

/// Multiplies fp8 values by the scales of their blocks.
class Fp8Scaler {
 public:
  /// Empty where the checkpoint has no scales for `weight`.
  static absl::StatusOr<Fp8Scaler> Load(const Checkpoint& checkpoint, const TensorInfo& weight);
  bool empty() const { return scales_.empty(); }

  /// values: elements [first, first + count) of the weight.
  void Apply(int64_t first, size_t count, float* values) const;

 private:
  int64_t rows_ = 0, cols_ = 0, scale_rows_ = 0, scale_cols_ = 0;
  std::vector<float> scales_;
};

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_FP8_SCALER_H_
