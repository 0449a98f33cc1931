// Residual streams that weights of each token mix, against plain loops.
#include "host/blocks/hyper_connection.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "support/architecture_fixture.h"
#include "support/catch.h"

namespace moert {
namespace {

using host::HyperConnection;

constexpr int64_t kRows = 37;
constexpr char kName[] = "layers.1.hc_ffn";

struct Loaded {
  explicit Loaded(int iterations, bool last = false) {
    config = *LoadHfConfig(test::ArchitectureDir("deepseek_v4"));
    config.hyper.iterations = iterations;
    checkpoint = *Checkpoint::Open(test::ArchitectureDir("deepseek_v4"));
    pool = *CreateThreadPool({.threads = 2});
    auto loaded = HyperConnection::Load(*checkpoint, config, last ? "hc_head" : kName, last);
    REQUIRE_OK(loaded.status());
    connection = *std::move(loaded);
  }
  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<ThreadPool> pool;
  HyperConnection connection;
};

std::vector<float> Random(int64_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(size);
  for (float& v : x) v = normal(random);
  return x;
}

// Reads, gains and mixture that a token's streams give, in double precision.
std::vector<double> PlainWeights(const Loaded& of, const std::string& name, const float* streams,
                                 int64_t count) {
  const int64_t width = of.config.hyper.streams * of.config.hidden_size;
  const auto fn = *of.checkpoint->ReadF32(name + "_fn", {count, width});
  const auto base = *of.checkpoint->ReadF32(name + "_base", {count});
  const int64_t parts = count > of.config.hyper.streams ? 3 : 1;
  const auto scale = *of.checkpoint->ReadF32(name + "_scale", {parts});
  double square = 0;
  for (int64_t i = 0; i < width; ++i) square += double{streams[i]} * streams[i] / width;
  std::vector<double> w(count);
  const int n = of.config.hyper.streams;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < width; ++d) w[i] += double{fn[i * width + d]} * streams[d];
    w[i] = w[i] / std::sqrt(square + 1e-6) * scale[std::min<int64_t>(i / n, 2)] + base[i];
    if (i < 2 * n) w[i] = (i < n ? 1 : 2) / (1 + std::exp(-w[i])) + (i < n ? 1e-6 : 0);
  }
  if (parts == 1) return w;
  double* const m = &w[2 * n];
  for (int r = 0; r < n; ++r) {
    double sum = 0;
    for (int c = 0; c < n; ++c) sum += std::exp(m[r * n + c]);
    for (int c = 0; c < n; ++c) m[r * n + c] = std::exp(m[r * n + c]) / sum + 1e-6;
  }
  for (int half = 1; half < 2 * of.config.hyper.iterations; ++half) {
    for (int line = 0; line < n; ++line) {
      double sum = 1e-6;
      for (int i = 0; i < n; ++i) sum += half % 2 ? m[i * n + line] : m[line * n + i];
      for (int i = 0; i < n; ++i) (half % 2 ? m[i * n + line] : m[line * n + i]) /= sum;
    }
  }
  return w;
}

TEST_CASE("blocks read and write streams as plain loops do") {
  for (const int iterations : {1, 4, 20}) {
    INFO(iterations << " iterations");
    Loaded of(iterations);
    const int64_t hidden = of.config.hidden_size;
    const int n = of.config.hyper.streams;
    const std::vector<float> before = Random(kRows * n * hidden, 1),
                             out = Random(kRows * hidden, 2);
    std::vector<float> streams = before;
    const float* const read = of.connection.Collapse(of.pool.get(), streams.data(), kRows);
    const std::vector<float> input(read, read + kRows * hidden);
    of.connection.Expand(of.pool.get(), out.data(), kRows, hidden, streams.data());
    for (int64_t row = 0; row < kRows; ++row) {
      const float* const x = &before[row * n * hidden];
      const auto w = PlainWeights(of, kName, x, (2 + n) * n);
      for (int64_t i = 0; i < hidden; ++i) {
        double sum = 0;
        for (int s = 0; s < n; ++s) sum += w[s] * x[s * hidden + i];
        REQUIRE(input[row * hidden + i] == Approx(sum).margin(1e-5));
        for (int to = 0; to < n; ++to) {
          sum = w[n + to] * out[row * hidden + i];
          for (int s = 0; s < n; ++s) sum += w[2 * n + s * n + to] * x[s * hidden + i];
          REQUIRE(streams[(row * n + to) * hidden + i] == Approx(sum).margin(1e-5));
        }
      }
    }
  }
}

TEST_CASE("the last one collapses by reads alone") {
  Loaded of(4, true);
  const int64_t hidden = of.config.hidden_size;
  const int n = of.config.hyper.streams;
  const std::vector<float> x = Random(kRows * n * hidden, 3);
  const float* const read = of.connection.Collapse(of.pool.get(), x.data(), kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto w = PlainWeights(of, "hc_head", &x[row * n * hidden], n);
    for (int64_t i = 0; i < hidden; ++i) {
      double sum = 0;
      for (int s = 0; s < n; ++s) sum += w[s] * x[(row * n + s) * hidden + i];
      REQUIRE(read[row * hidden + i] == Approx(sum).margin(1e-5));
    }
  }
}

TEST_CASE("one stream is read as it is, and outputs are added") {
  const auto pool = *CreateThreadPool({.threads = 1});
  HyperConnection plain;
  std::vector<float> x = {1, 2, 3};
  const std::vector<float> out = {10, 20, 30};
  CHECK(plain.Collapse(pool.get(), x.data(), 1) == x.data());
  plain.Expand(pool.get(), out.data(), 1, 3, x.data());
  CHECK(x == std::vector<float>{11, 22, 33});
}

}  // namespace
}  // namespace moert
