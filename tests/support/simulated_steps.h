// Steps of a made-up routing through an engine that simulates, with a CPU beside the fast tier or
// without one.
#ifndef MOERT_TESTS_SUPPORT_SIMULATED_STEPS_H_
#define MOERT_TESTS_SUPPORT_SIMULATED_STEPS_H_

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "moert/engine.h"
#include "moert/tools/trace.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {

struct SimulatedRun {
  EngineStats stats;
  int64_t now_ns = 0;
};

/// Decode steps of a routing that has scores, over three layers of 16 experts, four a token.
inline SimulatedRun Simulate(const std::string& strategy, double share, bool cpu_executor,
                             int64_t rows = 3, Phase phase = Phase::kDecode, int steps = 60,
                             double link = 15e6) {
  const auto source =
      MakeSizesSource(MakeTraceHeader(SyntheticSource(SyntheticShape{3, 16, 4, 64, 48, 0}), 513));
  EngineOptions options;
  options.strategy = strategy;
  options.clock = ClockKind::kVirtual;
  options.simulate = true;
  options.budget = Budget::Fraction(share);
  options.max_tokens_per_forward = std::max<int64_t>(rows, options.max_tokens_per_forward);
  options.profile.cpu_executor = cpu_executor;
  // An expert of 18 KiB: 1.2 ms to load by default, 0.6 ms a token on the CPU.
  options.profile.link_bytes_per_s = link;
  options.profile.cpu_weight_bytes_per_s = 30e6;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  std::mt19937 rng(3);
  std::vector<float> taste(16);
  for (float& v : taste) v = static_cast<float>(rng() % 1000) / 1000;
  for (int s = 0; s < steps; ++s) {
    auto step = (*engine)->BeginStep({phase, rows});
    REQUIRE_OK(step.status());
    for (int l = 0; l < 3; ++l) {
      std::vector<int32_t> ids;
      std::vector<float> weights, scores;
      for (int64_t t = 0; t < rows; ++t) {
        std::vector<float> row;
        float sum = 0;
        for (int e = 0; e < 16; ++e) {
          row.push_back(taste[e] + static_cast<float>(rng() % 1000) / 1000);
          sum += row.back();
        }
        for (float& v : row) v /= sum;
        std::vector<int32_t> order(16);
        for (int e = 0; e < 16; ++e) order[e] = e;
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
        for (int j = 0; j < 4; ++j) {
          ids.push_back(order[j]);
          weights.push_back(row[order[j]]);
        }
        scores.insert(scores.end(), row.begin(), row.end());
      }
      RoutedInput input;
      input.ids = ids;
      input.weights = weights;
      input.scores = scores;
      REQUIRE_OK((*engine)->ForwardRouted(*step, l, {}, input, {}));
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  return {(*engine)->stats(), (*engine)->now_ns()};
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_SIMULATED_STEPS_H_
