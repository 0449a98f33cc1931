#ifndef MOERT_EXAMPLES_UTIL_ROUNDING_H_
#define MOERT_EXAMPLES_UTIL_ROUNDING_H_

#include <cstdint>

namespace moert::util {

/// The smallest multiple of `multiple` that is not below `a`.
constexpr int64_t RoundUp(int64_t a, int64_t multiple) {
  return (a + multiple - 1) / multiple * multiple;
}

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_ROUNDING_H_
