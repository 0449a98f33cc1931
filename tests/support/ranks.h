// Ranks of a group that are threads of a test.
#ifndef MOERT_TESTS_SUPPORT_RANKS_H_
#define MOERT_TESTS_SUPPORT_RANKS_H_

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace moert::test {

/// Runs `rank(r)` for every rank, each on a thread.
template <typename Rank>
std::vector<absl::Status> OnRanks(int size, const Rank& rank) {
  std::vector<absl::Status> statuses(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { statuses[static_cast<size_t>(r)] = rank(r); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

/// The largest difference over b's largest value; NaN is a large one.
inline double Difference(absl::Span<const float> a, absl::Span<const float> b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? 1e9 : difference;
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return worst / largest;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_RANKS_H_
