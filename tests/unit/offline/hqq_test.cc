#include "offline/hqq.h"

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/catch.h"

namespace moert::test {
namespace {

// Weights as trained ones are: normal with a few heavy channels.
std::vector<float> Weights(int64_t rows, int64_t k, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, 0.03f);
  std::vector<float> w(static_cast<size_t>(rows * k));
  for (int64_t i = 0; i < rows * k; ++i) w[i] = normal(rng) * (i % k % 53 == 7 ? 3.0f : 1.0f);
  return w;
}

double Error(const Scheme& scheme, const QuantizedMatrix& q, const std::vector<float>& w,
             double norm) {
  const std::vector<float> back = Dequantize(scheme, q);
  double sum = 0;
  for (size_t i = 0; i < w.size(); ++i) sum += std::pow(std::fabs(back[i] - w[i]), norm);
  return sum;
}

TEST_CASE("the published method: nearer than its start in mean |error|, groups along the input") {
  HqqOptions published;
  published.scales = 1;
  HqqOptions start = published;
  start.iterations = 1;
  for (const char* name : {"w4a16_g128_asym", "w3a16_g128_asym", "w2a16_g64_asym"}) {
    const Scheme scheme = *Scheme::Parse(name);
    const MatrixLayout m = MakeRecordLayout(256, 32, ExpertFormat::Uniform(scheme))->gate;
    const std::vector<float> w = Weights(m.rows, m.k, 11);
    const double before = Error(scheme, QuantizeHqq(m, w, start), w, 1);
    const double after = Error(scheme, QuantizeHqq(m, w, published), w, 1);
    INFO(name << " " << before << " " << after);
    CHECK(after < before);
    // The search over scales serves squared error, and may not lose in it.
    CHECK(Error(scheme, QuantizeHqq(m, w), w, 2) <=
          Error(scheme, QuantizeHqq(m, w, published), w, 2));
  }
}

TEST_CASE("symmetric schemes: the scale search is better than the full range") {
  HqqOptions start;
  start.scales = 1;
  start.iterations = 1;
  for (const char* name : {"w4a16_g128", "w4a4"}) {
    const Scheme scheme = *Scheme::Parse(name);
    const MatrixLayout m = MakeRecordLayout(256, 32, ExpertFormat::Uniform(scheme))->gate;
    const std::vector<float> w = Weights(m.rows, m.k, 12);
    CHECK(Error(scheme, QuantizeHqq(m, w), w, 2) <
          0.9 * Error(scheme, QuantizeHqq(m, w, start), w, 2));
  }
}

TEST_CASE("degenerate groups stay finite and near") {
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.is_bf16()) continue;
    const MatrixLayout m = MakeRecordLayout(64, 16, ExpertFormat::Uniform(scheme))->gate;
    std::vector<float> w(static_cast<size_t>(m.rows * m.k), 0.0f);
    for (int64_t c = 0; c < m.k; ++c) {
      w[m.k + c] = 0.25f;
      w[2 * m.k + c] = c == 5 ? 1e-30f : 0.0f;
      w[3 * m.k + c] = 100.0f + static_cast<float>(c % 2);  // far from zero
    }
    const QuantizedMatrix q = QuantizeHqq(m, w);
    std::vector<std::byte> record(
        static_cast<size_t>(MakeRecordLayout(64, 16, ExpertFormat::Uniform(scheme))->bytes));
    REQUIRE_OK(PackMatrix(m, q, record.data()));  // refuses what is not finite
    const std::vector<float> back = Dequantize(scheme, q);
    INFO(scheme.Name());
    for (int64_t c = 0; c < m.k; ++c) {
      CHECK(back[c] == 0);
      CHECK(std::fabs(back[m.k + c] - 0.25f) < 0.04f);
      CHECK(std::fabs(back[2 * m.k + c]) < 1e-20f);
      CHECK(std::fabs(back[3 * m.k + c] - w[3 * m.k + c]) < 15.0f);
    }
  }
}

}  // namespace
}  // namespace moert::test
