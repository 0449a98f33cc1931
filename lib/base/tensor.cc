#include "moert/tensor.h"

namespace moert {

absl::string_view DTypeName(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF8E4M3:
      return "f8_e4m3";
    case DType::kU8:
      return "u8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kI8:
      return "i8";
    case DType::kF8E8M0:
      return "f8_e8m0";
    case DType::kF8E5M2:
      return "f8_e5m2";
    case DType::kBool:
      return "bool";
    case DType::kI16:
      return "i16";
    case DType::kU16:
      return "u16";
    case DType::kU32:
      return "u32";
    case DType::kU64:
      return "u64";
    case DType::kF64:
      return "f64";
  }
  return "invalid";
}

}  // namespace moert
