// The shared library's own copy of fmt, for systems whose fmt package has no static library: this
// file is compiled with -fkeep-inline-functions, so that it holds every function of fmt that the
// other files expect from libfmt. The version script hides them.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moert {

/// Uses the templates that are instantiated in libfmt and nowhere else.
std::string InstantiateFmt(int64_t i, double d, float f, const std::vector<int>& list) {
  // clang keeps an inline function only where its address is taken.
  using Vformat = std::string (*)(fmt::string_view, fmt::format_args);
  [[maybe_unused]] const volatile Vformat kept = fmt::vformat;
  return fmt::format("{} {} {} {:L} {:L} {}", i, d, f, i, d, fmt::join(list, ","));
}

}  // namespace moert
