// Lets fmt print absl::string_view where it is a type of its own (Debian builds Abseil as C++14).
#ifndef MOERT_LIB_BASE_FMT_ABSL_H_
#define MOERT_LIB_BASE_FMT_ABSL_H_

#include "absl/base/config.h"
#include "absl/strings/string_view.h"
#include "fmt/format.h"

#ifndef ABSL_USES_STD_STRING_VIEW
template <>
struct fmt::formatter<absl::string_view> : fmt::formatter<fmt::string_view> {
  template <typename Context>
  auto format(absl::string_view text, Context& context) const {
    return fmt::formatter<fmt::string_view>::format({text.data(), text.size()}, context);
  }
};
#endif

#endif  // MOERT_LIB_BASE_FMT_ABSL_H_
