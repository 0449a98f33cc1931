#include "moert/offline/linear_weight.h"

#include <algorithm>

#include "base/bf16.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/quantized_weights.h"

namespace moert {

absl::StatusOr<LinearWeight> LinearWeight::Open(const Checkpoint& checkpoint,
                                                const QuantizationConfig& form,
                                                const std::string& name, int64_t rows,
                                                int64_t cols) try {
  LinearWeight w;
  w.cols_ = cols;
  const QuantizedWeights quantized(&checkpoint, form);
  const StoredWeights stored = quantized.FormOf(name);
  if (stored != StoredWeights::kPlain && stored != StoredWeights::kFp8) {
    const StoredMatrix matrix = {name, rows, cols};
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, quantized.SchemeOf(matrix));
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix codes, quantized.Read(matrix, ChannelOrder::kAny));
    const std::vector<float> wide = Dequantize(scheme, codes);
    w.values_.resize(wide.size());
    std::transform(wide.begin(), wide.end(), w.values_.begin(),
                   [](float f) { return F32ToBf16(f); });
    return w;
  }
  MOERT_ASSIGN_OR_RETURN(w.tensor_, checkpoint.Get(name + ".weight"));
  const int64_t expected[] = {rows, cols};
  if (w.tensor_->shape != absl::MakeConstSpan(expected)) {
    return InvalidArgument("{}: tensor \"{}\" is {}, expected {}", checkpoint.path(),
                           Printable(w.tensor_->name), ShapeToString(w.tensor_->shape),
                           ShapeToString(expected));
  }
  MOERT_RETURN_IF_ERROR(checkpoint.CheckWeightType(*w.tensor_));
  w.checkpoint_ = &checkpoint;
  w.bf16_ = w.tensor_->dtype == DType::kBF16 || w.tensor_->dtype == DType::kF8E4M3;
  return w;
} catch (...) {
  return ExceptionStatus(name);
}

absl::Status LinearWeight::CheckRange(int64_t first, size_t count) const {
  const auto size = static_cast<int64_t>(values_.size());
  if (first >= 0 && first * cols_ <= size && static_cast<int64_t>(count) <= size - first * cols_) {
    return absl::OkStatus();
  }
  return OutOfRange("{} values from row {} on asked of {} in rows of {}", count, first, size,
                    cols_);
}

absl::Status LinearWeight::Read(int64_t first, absl::Span<uint16_t> dst) const try {
  if (tensor_ != nullptr) return checkpoint_->ReadAsBf16(*tensor_, first * cols_, dst);
  MOERT_RETURN_IF_ERROR(CheckRange(first, dst.size()));
  std::copy_n(values_.begin() + first * cols_, dst.size(), dst.begin());
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("a linear layer");
}

absl::Status LinearWeight::Read(int64_t first, absl::Span<float> dst) const try {
  if (tensor_ != nullptr) return checkpoint_->ReadAsF32(*tensor_, first * cols_, dst);
  MOERT_RETURN_IF_ERROR(CheckRange(first, dst.size()));
  Bf16ToF32(values_.data() + first * cols_, static_cast<int64_t>(dst.size()), dst.data());
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("a linear layer");
}

}  // namespace moert
