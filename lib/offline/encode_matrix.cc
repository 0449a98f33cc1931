#include "moert/offline/encode_matrix.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>

#include "base/exception_status.h"
#include "offline/hqq.h"
#include "offline/rtn.h"
#include "quant/packing.h"
#include "quant/quantized_matrix.h"

namespace moert {

absl::Status EncodeMatrix(const MatrixLayout& layout, QuantMethod method,
                          absl::Span<const float> weights, std::byte* record) try {
  if (static_cast<int64_t>(weights.size()) != layout.rows * layout.k) {
    return absl::InvalidArgumentError(
        fmt::format("{} weights for a matrix of {} x {}", weights.size(), layout.rows, layout.k));
  }
  unsigned bad = 0;  // no branch: the loop is one of vectors
  for (const float weight : weights) {
    bad |= (std::bit_cast<uint32_t>(weight) & 0x7f800000u) == 0x7f800000u;
  }
  if (bad != 0) return absl::InvalidArgumentError("a weight is not finite");
  if (layout.scheme.is_bf16()) return PackMatrixBf16(layout, weights, record);
  switch (method) {
    case QuantMethod::kRtn:
      return PackMatrix(layout, QuantizeRtn(layout, weights), record);
    case QuantMethod::kHqq:
      return PackMatrix(layout, QuantizeHqq(layout, weights), record);
    case QuantMethod::kGptq:
      break;
  }
  return absl::UnimplementedError("gptq has to know a matrix's inputs: RunQuantizeJob does");
} catch (...) {
  return ExceptionStatus("quantizing a matrix");
}

absl::Status DecodeMatrix(const MatrixLayout& layout, const std::byte* record,
                          std::vector<float>* weights) try {
  return UnpackMatrix(layout, record, weights);
} catch (...) {
  return ExceptionStatus("widening a matrix");
}

}  // namespace moert
