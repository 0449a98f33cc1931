// Element types and the plain views that cross the API. Shapes are written [rows, cols], row-major,
// and every size is in elements unless the name says bytes. Views borrow: the caller keeps the
// memory alive for as long as the call that takes the view documents.
#ifndef MOERT_TENSOR_H_
#define MOERT_TENSOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace moert {

enum class DType : int32_t {
  kF32 = 0,
  kBF16 = 1,
  kF16 = 2,
  kF8E4M3 = 3,  // checkpoints only: widened when read
  kU8 = 4,      // packed records
  kI32 = 5,
  kI64 = 6,
  // Checkpoints only: codes and scales of quantized weights, and tensors other than experts.
  kI8 = 7,
  kF8E8M0 = 8,
  kF8E5M2 = 9,
  kBool = 10,
  kI16 = 11,
  kU16 = 12,
  kU32 = 13,
  kU64 = 14,
  kF64 = 15,
};

/// Bytes of one element.
constexpr int64_t DTypeBytes(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E8M0:
    case DType::kF8E5M2:
    case DType::kBool:
      return 1;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

absl::string_view DTypeName(DType t);  // "f32", "bf16", ...

/// Where memory lies.
enum class Place : int32_t {
  kHost = 0,
  kDevice = 1,  // of the engine; its backend is CUDA
};

/// A borrowed matrix of hidden states: `rows` tokens of `cols` channels, `row_stride` elements
/// apart. Host memory on the CPU backend, device memory on CUDA.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
};

/// The same, writable.
struct MutableMatrixView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
};

}  // namespace moert

#endif  // MOERT_TENSOR_H_
