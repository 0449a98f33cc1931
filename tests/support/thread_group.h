// Groups of ranks that are threads on the CPU, and the model they share.
#ifndef MOERT_TESTS_SUPPORT_THREAD_GROUP_H_
#define MOERT_TESTS_SUPPORT_THREAD_GROUP_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "moert/engine.h"
#include "moert/parallel/collectives.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert::test {

constexpr int64_t kSecond = 1'000'000'000;
/// The bound for fp32 sums of a few values in another order: the largest difference, see
/// Difference.
constexpr double kRankBound = 2e-6;

inline SyntheticShape RankShape() {
  SyntheticShape shape;
  shape.layers = 2;
  shape.experts = 8;
  shape.top_k = 3;
  shape.intermediate = 128;
  shape.shared_intermediate = 128;
  return shape;
}

inline EngineOptions RankOptions(double fraction) {
  EngineOptions options;
  options.threads = 1;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = 32;
  return options;
}

inline std::vector<std::shared_ptr<Collectives>> ThreadGroup(int size,
                                                             int64_t timeout_ns = 20 * kSecond) {
  auto made = MakeThreadCollectives(size, timeout_ns);
  REQUIRE_OK(made.status());
  std::vector<std::shared_ptr<Collectives>> group;
  for (auto& rank : *made) group.push_back(std::move(rank));
  return group;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_THREAD_GROUP_H_
