// Names of enumerators that count from 0.
#ifndef MOERT_LIB_BASE_ENUM_NAME_H_
#define MOERT_LIB_BASE_ENUM_NAME_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace moert {

/// The name of `value`; "invalid" if it is not an enumerator.
template <typename Enum, size_t N>
constexpr absl::string_view EnumName(const absl::string_view (&names)[N], Enum value) {
  const auto index = static_cast<size_t>(value);
  return index < N ? names[index] : absl::string_view("invalid");
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_ENUM_NAME_H_
