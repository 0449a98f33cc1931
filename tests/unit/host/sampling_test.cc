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
  Sampler greedy{SamplingOptions{}};
  for (int i = 0; i < 10; ++i) REQUIRE(*greedy.Next({0.0f, 2.0f, 2.0f}) == 1);
}

TEST_CASE("temperature: frequencies follow softmax(logits / T), and seeds repeat") {
  const std::vector<float> logits = {0.0f, 1.0f, -INFINITY, 2.0f};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    SamplingOptions options;
    options.temperature = temperature;
    options.seed = 42;
    Sampler sampler(options), twin(options);
    options.seed = 43;
    Sampler other(options);
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

// How often each token is drawn in 4,000 tries.
std::vector<int> Draw(const std::vector<float>& logits, const SamplingOptions& options,
                      const std::vector<int32_t>& sequence = {}) {
  Sampler sampler(options);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < 4000; ++i) ++counts[static_cast<size_t>(*sampler.Next(logits, sequence))];
  return counts;
}

TEST_CASE("top-p keeps the likeliest tokens that reach it, min-p those near the likeliest") {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), 0.0f, 0.0f};
  SamplingOptions options;
  options.temperature = 1;
  options.top_p = 0.7;
  std::vector<int> counts = Draw(logits, options);
  CHECK(counts[0] == Approx(4000.0 * 2 / 3).epsilon(0.06));
  CHECK(counts[1] == Approx(4000.0 / 3).epsilon(0.1));
  CHECK((counts[2] == 0 && counts[3] == 0));
  options.top_p = 0;  // the likeliest is always kept
  CHECK(Draw(logits, options)[0] == 4000);
  options.top_p = 1;
  options.min_p = 0.3;
  counts = Draw(logits, options);
  CHECK((counts[0] > 0 && counts[1] > 0 && counts[2] == 0 && counts[3] == 0));
}

TEST_CASE("the repetition penalty lowers what was said, whatever its logit's sign") {
  SamplingOptions options;
  options.repetition_penalty = 2;
  CHECK(*Sampler(options).Next({3.0f, 2.0f}, std::vector<int32_t>{0, 0, 7}) == 1);
  CHECK(*Sampler(options).Next({-1.0f, -1.5f}, std::vector<int32_t>{0}) == 1);
  CHECK(*Sampler(options).Next({3.0f, 2.0f}) == 0);
}

TEST_CASE("sampling options out of range are named") {
  SamplingOptions options;
  options.top_p = 1.5;
  CHECK_THAT(std::string(options.Validate().message()), Catch::Contains("top-p: 1.5"));
  options.top_p = 1;
  options.repetition_penalty = 0;
  CHECK_THAT(std::string(options.Validate().message()), Catch::Contains("repetition-penalty"));
}

}  // namespace
}  // namespace moert::host
