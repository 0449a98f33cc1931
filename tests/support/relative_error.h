// How far results are from what they should be.
#ifndef MOERT_TESTS_SUPPORT_RELATIVE_ERROR_H_
#define MOERT_TESTS_SUPPORT_RELATIVE_ERROR_H_

#include <cmath>
#include <cstddef>
#include <vector>

namespace moert::test {

/// ||a - b|| / ||b||; a large number when something is not finite.
template <typename T = double>
double RelativeError(const std::vector<float>& a, const std::vector<T>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double right = b[i], d = static_cast<double>(a[i]) - right;
    if (!(d == d)) return 1e9;
    difference += d * d;
    norm += right * right;
  }
  return norm > 0 ? std::sqrt(difference / norm) : difference;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_RELATIVE_ERROR_H_
