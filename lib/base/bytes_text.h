// Formats a number of bytes for people.
#ifndef MOERT_LIB_BASE_BYTES_TEXT_H_
#define MOERT_LIB_BASE_BYTES_TEXT_H_

#include <cstdint>
#include <string>

namespace moert {

/// "512 B", "1.5 KiB", "24.0 MiB", "7.50 GiB".
std::string BytesText(int64_t bytes);

}  // namespace moert

#endif  // MOERT_LIB_BASE_BYTES_TEXT_H_
