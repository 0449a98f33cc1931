#include "moert/tensor.h"

#include "base/enum_name.h"

namespace moert {

absl::string_view DTypeName(DType t) {
  constexpr absl::string_view kNames[] = {"f32", "bf16", "f16",     "f8_e4m3", "u8",   "i32",
                                          "i64", "i8",   "f8_e8m0", "f8_e5m2", "bool", "i16",
                                          "u16", "u32",  "u64",     "f64"};
  return EnumName(kNames, t);
}

}  // namespace moert
