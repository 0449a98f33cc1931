// The host's matrix product: every kernel set, row count and odd size against fp64, and
// bit-identity.
#include "host/blocks/linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "host/blocks/panel_gemm.h"
#include "host/blocks/rope.h"
#include "moert/thread_pool.h"
#include "support/catch.h"

namespace moert::host {
namespace {

std::vector<float> RandomFloats(std::mt19937* random, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(*random);
  return v;
}

TEST_CASE("products of odd shapes equal fp64 ones, and rows do not depend on their number") {
  std::mt19937 random(3);
  auto pool = CreateThreadPool({.threads = 3});
  REQUIRE_OK(pool.status());
  for (const int64_t out : {1, 15, 16, 17, 130, 700}) {
    for (const int64_t in : {1, 7, 64, 129}) {
      const bool bias = (out + in) % 2 == 0;
      const auto w = RandomFloats(&random, out * in);
      const auto b = RandomFloats(&random, out);
      const Linear linear = Linear::FromF32(w.data(), out, in, bias ? b.data() : nullptr);
      const int64_t most = 131;
      const auto x = RandomFloats(&random, most * in);
      std::vector<float> all(most * out);
      linear.Forward(pool->get(), x.data(), most, all.data());
      for (int64_t i = 0; i < most * out; ++i) {
        double sum = bias ? b[i % out] : 0.0, magnitude = 1.0;
        for (int64_t k = 0; k < in; ++k) {
          const double product = double{x[i / out * in + k]} * w[i % out * in + k];
          sum += product;
          magnitude += std::fabs(product);
        }
        REQUIRE(std::fabs(all[i] - sum) <= 1e-6 * magnitude);
      }
      for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 13, 64, 65}) {
        std::vector<float> some(rows * out);
        linear.Forward(pool->get(), x.data(), rows, some.data());
        REQUIRE(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)) == 0);
      }
      std::vector<float> row(in);
      linear.Row(out - 1, row.data());
      REQUIRE(std::memcmp(row.data(), &w[(out - 1) * in], in * sizeof(float)) == 0);
    }
  }
}

/// Keeps weights, multiplies as they do, and may refuse one of its products.
class FakeDevice final : public DeviceProducts {
 public:
  explicit FakeDevice(int refused) : refused_(refused) {}
  struct Kept final : KeptWeights {
    Linear linear;
  };
  absl::Status Multiply(const float*, int64_t, int64_t, const float*, int64_t, float*) override {
    return absl::UnimplementedError("unused");
  }
  absl::StatusOr<std::unique_ptr<KeptWeights>> Keep(const float* w, int64_t out,
                                                    int64_t in) override {
    auto kept = std::make_unique<Kept>();
    kept->linear = Linear::FromF32(w, out, in, nullptr);
    return kept;
  }
  absl::Status MultiplyKept(const KeptWeights& w, const float* x, int64_t rows, float* y) override {
    if (++products == refused_) return absl::ResourceExhaustedError("full");
    most_rows = std::max<int64_t>(most_rows, rows);
    const auto alone = *CreateThreadPool({.threads = 1});
    static_cast<const Kept&>(w).linear.Forward(alone.get(), x, rows, y);
    return absl::OkStatus();
  }
  absl::Status first_error() const override { return absl::OkStatus(); }
  const std::string& name() const override { return name_; }

  std::atomic<int> products{0};
  std::atomic<int64_t> most_rows{0};

 private:
  const int refused_;
  const std::string name_ = "fake";
};

TEST_CASE("a device's rows go in parts, and the threads do what it refuses") {
  std::mt19937 random(4);
  const auto pool = *CreateThreadPool({.threads = 3});
  const int64_t out = 1000, in = 1048, rows = 5000;  // three parts: 2048 rows at once
  const auto w = RandomFloats(&random, out * in), b = RandomFloats(&random, out);
  const auto x = RandomFloats(&random, rows * in);
  const Linear plain = Linear::FromF32(w.data(), out, in, b.data());
  std::vector<float> expected(rows * out);
  plain.Forward(pool.get(), x.data(), rows, expected.data());
  for (const int refused : {0, 1, 2, 3}) {
    INFO("refuses product " << refused);
    FakeDevice device(refused);
    Linear linear = plain;
    linear.UseDevice(&device);
    std::vector<float> found(expected.size(), NAN);
    linear.Forward(pool.get(), x.data(), rows, found.data());
    if (refused == 0) CHECK(device.products == 3);
    CHECK(device.products >= refused);
    CHECK(device.most_rows <= 2048);
    double apart = 0;  // a bias is added behind the sum, or is where it begins
    for (size_t i = 0; i < found.size(); ++i) {
      const double here = std::abs(double{found[i]} - expected[i]);
      if (!(here <= apart)) apart = here;
    }
    CHECK(apart < 1e-3);
    CHECK((apart == 0) == (refused > 0));
  }
}

TEST_CASE("all vector kernels give the same bits, the portable one the same within rounding") {
  std::mt19937 random(4);
  const int64_t k = 100, panels = 11, rows = 14;
  const auto x = RandomFloats(&random, rows * k);
  const auto f32 = RandomFloats(&random, panels * k * kPanelWidth);
  std::vector<uint16_t> bf16(f32.size());
  for (size_t i = 0; i < f32.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &f32[i], 4);
    bf16[i] = static_cast<uint16_t>(bits >> 16);
  }
  const auto bias = RandomFloats(&random, panels * kPanelWidth);
  for (const bool narrow : {false, true}) {
    for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{6}, rows}) {
      PanelGemm g{};
      g.x = x.data();
      g.x_stride = k;
      g.rows = n;
      g.k = k;
      g.panels = narrow ? static_cast<const void*>(bf16.data()) : f32.data();
      g.panel_stride = k * kPanelWidth;
      g.num_panels = panels;
      g.bias = n == 3 ? nullptr : bias.data();
      g.y_stride = panels * kPanelWidth;
      const auto run = [&](const PanelKernels& kernels) {
        std::vector<float> y(n * g.y_stride);
        g.y = y.data();
        (narrow ? kernels.bf16 : kernels.f32)(g);
        return y;
      };
      const std::vector<float> portable = run(*PanelKernelsPortable());
      std::vector<std::vector<float>> vector_results;
      for (const PanelKernels* kernels : {PanelKernelsAvx512(), PanelKernelsAvx2()}) {
        if (kernels == nullptr) continue;
        vector_results.push_back(run(*kernels));
        for (size_t i = 0; i < portable.size(); ++i) {
          REQUIRE(std::fabs(vector_results.back()[i] - portable[i]) < 1e-4f);
        }
        REQUIRE(vector_results.back() == vector_results.front());
      }
    }
  }
}

TEST_CASE("frequencies of Llama-4-Scout, with a transition (base) and without (Instruct)") {
  // As transformers 5.23 computes them for the two published rope_scaling objects.
  struct Case {
    double factor, high;
    float at[5];
  };
  constexpr int kPairs[] = {0, 20, 34, 35, 63};
  const Case cases[] = {{16, 1, {1.0f, 1.6560441e-2f, 9.3847385e-4f, 4.7781061e-5f, 1.5344629e-7f}},
                        {8, 4, {1.0f, 1.6560441e-2f, 1.7850779e-4f, 9.5562122e-5f, 3.0689259e-7f}}};
  for (const Case& c : cases) {
    RopeConfig config;
    config.kind = RopeKind::kLlama3;
    config.dim = 128;
    config.theta = 500000;
    config.factor = c.factor;
    config.low_freq_factor = 1;
    config.high_freq_factor = c.high;
    config.original_max_positions = 8192;
    const Rope rope(config);
    for (int i = 0; i < 5; ++i) {
      CHECK(rope.inverse_frequencies(0)[kPairs[i]] == Approx(c.at[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("rotary embedding: a rotation, and scores depend on the distance of positions only") {
  std::mt19937 random(5);
  RopeConfig config;
  config.theta = 1e6;
  config.dim = 32;
  Rope rope(config);
  rope.Extend(600);
  const auto q = RandomFloats(&random, 32), k = RandomFloats(&random, 32);
  const auto score = [&](int64_t at_q, int64_t at_k) {
    auto a = q, b = k;
    rope.Rotate(0, at_q, a.data());
    rope.Rotate(0, at_k, b.data());
    double dot = 0.0;
    for (int i = 0; i < 32; ++i) dot += double{a[i]} * b[i];
    return dot;
  };
  REQUIRE(score(5, 2) == Approx(score(503, 500)).margin(1e-3));
  REQUIRE(score(0, 0) == Approx(score(400, 400)).margin(1e-3));
  REQUIRE(std::fabs(score(5, 2) - score(6, 2)) > 1e-3);
  auto a = q;
  rope.Rotate(0, 0, a.data());
  REQUIRE(a == q);
  // Channels 0 and 16 turn by one radian a position, channels 1 and 17 by theta^(-1/16).
  std::vector<float> unit(32);
  unit[0] = unit[1] = 1.0f;
  rope.Rotate(0, 1, unit.data());
  REQUIRE(unit[16] == Approx(std::sin(1.0)));
  REQUIRE(unit[17] == Approx(std::sin(std::pow(1e6, -1.0 / 16))));
}

}  // namespace
}  // namespace moert::host
