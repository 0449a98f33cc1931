#include "host/sampling.h"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"

namespace moert::host {
namespace {

TEST_CASE("greedy: the highest logit, the lowest id among equals, errors for NaN") {
  REQUIRE(*ArgMax({1.0f, 3.0f, 3.0f, 2.0f}) == 1);
  REQUIRE(*ArgMax({-INFINITY, -5.0f}) == 1);
  REQUIRE_FALSE(ArgMax({1.0f, NAN}).ok());
  REQUIRE_FALSE(ArgMax({-INFINITY, -INFINITY}).ok());
  REQUIRE_FALSE(ArgMax({INFINITY, 0.0f}).ok());
  REQUIRE_FALSE(ArgMax({}).ok());
  Sampler greedy(0.0, 1);
  for (int i = 0; i < 10; ++i) REQUIRE(*greedy.Next({0.0f, 2.0f, 2.0f}) == 1);
}

TEST_CASE("temperature: frequencies follow softmax(logits / T), and seeds repeat") {
  const std::vector<float> logits = {0.0f, 1.0f, -INFINITY, 2.0f};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    Sampler sampler(temperature, 42), twin(temperature, 42), other(temperature, 43);
    constexpr int kDraws = 40000;
    std::vector<int> counts(4);
    int differing = 0;
    for (int i = 0; i < kDraws; ++i) {
      const int32_t id = *sampler.Next(logits);
      REQUIRE(id == *twin.Next(logits));
      differing += id != *other.Next(logits);
      ++counts[id];
    }
    REQUIRE(differing > 0);
    double total = 0.0;
    for (const float l : logits) total += std::exp(l / temperature);
    for (int i = 0; i < 4; ++i) {
      const double p = std::exp(logits[i] / temperature) / total;
      INFO("T " << temperature << " id " << i);
      REQUIRE(std::fabs(counts[i] / double{kDraws} - p) < 5 * std::sqrt(p / kDraws) + 1e-9);
    }
  }
}

TEST_CASE("log-sum-exp does not overflow") {
  REQUIRE(LogSumExp({1000.0f, 1000.0f}) == Approx(1000.0 + std::log(2.0)));
  REQUIRE(LogSumExp({-1000.0f}) == Approx(-1000.0));
}

}  // namespace
}  // namespace moert::host
