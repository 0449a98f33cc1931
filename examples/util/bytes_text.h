// Byte counts as text for people.
#ifndef MOERT_EXAMPLES_UTIL_BYTES_TEXT_H_
#define MOERT_EXAMPLES_UTIL_BYTES_TEXT_H_

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace moert::util {

/// "512 B", "1.5 KiB", "24.0 MiB", "7.50 GiB".
inline std::string BytesText(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < (int64_t{1} << 20)) return fmt::format("{:.1f} KiB", b / 1024);
  if (bytes < (int64_t{1} << 30)) return fmt::format("{:.1f} MiB", b / (1 << 20));
  return fmt::format("{:.2f} GiB", b / (1 << 30));
}

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_BYTES_TEXT_H_
