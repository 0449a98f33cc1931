#include "moert/offline/encode_matrix.h"

#include <bit>
#include <cstdint>

#include "base/errors.h"
#include "base/exception_status.h"
#include "offline/expert_quantizer.h"
#include "offline/hqq.h"
#include "offline/rtn.h"
#include "quant/packing.h"
#include "quant/quantized_matrix.h"

namespace moert {
namespace {

/// Works in blocks of a fixed size without a branch, so that the loops are vectorized.
bool AllFinite(absl::Span<const float> weights) {
  constexpr size_t kBlock = 64;
  constexpr uint32_t kExponent = 0x7f800000u, kLowest = 0x00800000u, kOverflow = 0x80000000u;
  uint32_t bad = 0;
  const auto check = [&](float weight) {
    bad |= (std::bit_cast<uint32_t>(weight) & kExponent) + kLowest;
  };
  const float* at = weights.data();
  for (; weights.size() >= kBlock; weights.remove_prefix(kBlock), at += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) check(at[i]);
  }
  for (const float weight : weights) check(weight);
  return (bad & kOverflow) == 0;
}

}  // namespace

namespace offline {

absl::Status EncodeMatrixOn(OfflineDevice* device, const MatrixLayout& layout, QuantMethod method,
                            absl::Span<const float> weights, std::byte* record) {
  if (static_cast<int64_t>(weights.size()) != layout.rows * layout.k) {
    return InvalidArgument("{} weights for a matrix of {} x {}", weights.size(), layout.rows,
                           layout.k);
  }
  if (!AllFinite(weights)) return absl::InvalidArgumentError("a weight is not finite");
  if (layout.scheme.is_bf16()) return PackMatrixBf16(layout, weights, record);
  switch (method) {
    case QuantMethod::kRtn:
      return PackMatrix(layout, QuantizeRtn(layout, weights, {}, device), record);
    case QuantMethod::kHqq:
      return PackMatrix(layout, QuantizeHqq(layout, weights, {}, device), record);
    case QuantMethod::kGptq:
      break;
  }
  return absl::UnimplementedError("gptq has to know a matrix's inputs: RunQuantizeJob does");
}

}  // namespace offline

absl::Status EncodeMatrix(const MatrixLayout& layout, QuantMethod method,
                          absl::Span<const float> weights, std::byte* record) try {
  return offline::EncodeMatrixOn(nullptr, layout, method, weights, record);
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
