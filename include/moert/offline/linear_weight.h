// The weight of one linear layer of a checkpoint, in whatever form it is stored: for hosts that
// read the layers around the experts.
#ifndef MOERT_OFFLINE_LINEAR_WEIGHT_H_
#define MOERT_OFFLINE_LINEAR_WEIGHT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/quantization_config.h"

namespace moert {

/// Thread-safe.
class LinearWeight {
 public:
  /// Opens NAME.weight [rows, cols], or the tensors that `form` has in its place. Weights in forms
  /// other than floats and fp8 are read, rounded to bf16 and kept in memory. Borrows the
  /// checkpoint. Errors name the tensor: missing, another shape or type, values that are no
  /// numbers.
  static absl::StatusOr<LinearWeight> Open(const Checkpoint& checkpoint,
                                           const QuantizationConfig& form, const std::string& name,
                                           int64_t rows, int64_t cols);

  /// Whether a host should keep the weight as bf16: the file has bf16, or it is quantized.
  bool bf16() const { return tensor_ == nullptr || bf16_; }
  /// Rows from `first` on, row-major, as many as fill `dst`: bf16 bits, rounded to nearest even.
  absl::Status Read(int64_t first, absl::Span<uint16_t> dst) const;
  /// The same in fp32.
  absl::Status Read(int64_t first, absl::Span<float> dst) const;

 private:
  LinearWeight() = default;
  absl::Status CheckRange(int64_t first, size_t count) const;

  const Checkpoint* checkpoint_ = nullptr;
  const TensorInfo* tensor_ = nullptr;  // null: in values_
  std::vector<uint16_t> values_;
  int64_t cols_ = 0;
  bool bf16_ = false;
};

}  // namespace moert

#endif  // MOERT_OFFLINE_LINEAR_WEIGHT_H_
