// GPTQ, and the traps of calibrating experts: too few tokens, singular moments, dead inputs, values
// that are not finite.
#include "offline/gptq.h"

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "idle_device.h"
#include "offline/fit_forms.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

constexpr int64_t kHidden = 256, kRows = 48;

std::vector<float> Normal(int64_t n, float scale, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

// Inputs with strongly correlated channels, as hidden states have.
std::vector<float> Inputs(int64_t tokens, int64_t k, uint64_t seed) {
  const int64_t rank = k / 8;
  const std::vector<float> basis = Normal(rank * k, 1.0f, 99),
                           mix = Normal(tokens * rank, 1.0f, seed);
  std::vector<float> x = Normal(tokens * k, 0.3f, seed + 1);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t c = 0; c < k; ++c) x[t * k + c] += mix[t * rank + r] * basis[r * k + c];
    }
  }
  return x;
}

/// || X (W - Q)^T ||^2 weighted by token.
double OutputError(const std::vector<float>& x, const std::vector<float>& w,
                   const std::vector<float>& back, int64_t k,
                   const std::vector<float>& weights = {}) {
  double sum = 0;
  for (size_t t = 0; t < x.size() / k; ++t) {
    const double weight = weights.empty() ? 1 : weights[t];
    for (size_t r = 0; r < w.size() / k; ++r) {
      double e = 0;
      for (int64_t c = 0; c < k; ++c) e += double{x[t * k + c]} * (w[r * k + c] - back[r * k + c]);
      sum += weight * weight * e * e;
    }
  }
  return sum;
}

MatrixLayout Layout(const char* scheme) {
  return MakeRecordLayout(kHidden, kRows, ExpertFormat::Uniform(*Scheme::Parse(scheme)))->gate;
}

InputMoments Moments(const std::vector<float>& x, int64_t k = kHidden) {
  InputMoments moments(k);
  REQUIRE_OK(moments.Add(x, {}));
  return moments;
}

TEST_CASE("moments are the weighted sums of products, however they are cut") {
  const int64_t k = 24, tokens = 700;
  const std::vector<float> x = Normal(tokens * k, 1.0f, 5), weights = Normal(tokens, 1.0f, 6);
  InputMoments whole(k), parts(k);
  REQUIRE_OK(whole.Add(x, weights));
  for (int64_t begin = 0; begin < tokens; begin += 123) {
    const int64_t n = std::min<int64_t>(123, tokens - begin);
    REQUIRE_OK(parts.Add(absl::MakeConstSpan(x).subspan(begin * k, n * k),
                         absl::MakeConstSpan(weights).subspan(begin, n)));
  }
  CHECK(whole.tokens() == tokens);
  CHECK(parts.tokens() == tokens);
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        sum += double{weights[t]} * weights[t] * x[t * k + i] * x[t * k + j];
      }
      CHECK(whole.lower()[i * k + j] == Approx(sum).margin(0.01));
      CHECK(parts.lower()[i * k + j] == Approx(sum).margin(0.01));
    }
  }
}

TEST_CASE("the factor's square is the damped moments") {
  const int64_t k = 40;
  const InputMoments moments = Moments(Normal(300 * k, 1.0f, 7), k);
  const auto factor = FactorMoments(moments, {});
  REQUIRE_OK(factor.status());
  CHECK(factor->damping == 0.01);
  CHECK(factor->dead_columns == 0);
  double mean = 0;
  for (int64_t i = 0; i < k; ++i) mean += moments.lower()[i * k + i] / k;
  const auto h = [&](int64_t i, int64_t j) {
    return moments.lower()[std::max(i, j) * k + std::min(i, j)] + (i == j ? 0.01 * mean : 0);
  };
  const auto m = [&](int64_t i, int64_t c) {
    const double diagonal = factor->shares[c * k + c];
    return i == c ? diagonal : factor->shares[i * k + c] * diagonal;
  };
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t c = i; c < k; ++c) sum += m(i, c) * m(j, c);
      CHECK(sum == Approx(h(i, j)).margin(1e-4 * mean));
    }
    for (int64_t j = 0; j < i; ++j) CHECK(factor->shares[i * k + j] == 0);
  }
}

TEST_CASE("outputs are nearer than with rounding to nearest and HQQ, on inputs it did not see") {
  const std::vector<float> w = Normal(kRows * kHidden, 0.05f, 1);
  const std::vector<float> seen = Inputs(4096, kHidden, 20), unseen = Inputs(512, kHidden, 40);
  const auto factor = FactorMoments(Moments(seen), {});
  REQUIRE_OK(factor.status());
  for (const char* name : {"w4a16_g128", "w4a16_g128_asym", "w3a16_g128_asym", "w2a16_g64_asym",
                           "w3a16_g-1_asym", "w4a4", "w8a8", "w8a8_fp8"}) {
    const Scheme scheme = *Scheme::Parse(name);
    const MatrixLayout m = Layout(name);
    const auto error = [&](const QuantizedMatrix& q) {
      return OutputError(unseen, w, Dequantize(scheme, q), kHidden);
    };
    const auto gptq = QuantizeGptq(m, w, *factor);
    REQUIRE_OK(gptq.status());
    const double by_gptq = error(*gptq), by_rtn = error(QuantizeRtn(m, w)),
                 by_hqq = error(QuantizeHqq(m, w));
    INFO(name << " gptq " << by_gptq << " rtn " << by_rtn << " hqq " << by_hqq);
    CHECK(by_gptq < 0.6 * std::min(by_rtn, by_hqq));
  }
}

TEST_CASE("blocks only change how the sums are cut") {
  const std::vector<float> w = Normal(kRows * kHidden, 0.05f, 1), x = Inputs(2048, kHidden, 3);
  const auto factor = FactorMoments(Moments(x), {});
  REQUIRE_OK(factor.status());
  for (const char* name : {"w3a16_g-1_asym", "w2a16_g64_asym"}) {
    const MatrixLayout m = Layout(name);
    GptqOptions one;
    one.block = kHidden;
    GptqOptions small;
    small.block = 64;
    const double a =
        OutputError(x, w, Dequantize(m.scheme, *QuantizeGptq(m, w, *factor, one)), kHidden);
    const double b =
        OutputError(x, w, Dequantize(m.scheme, *QuantizeGptq(m, w, *factor, small)), kHidden);
    INFO(name);
    // Rounding of sums tips a few codes over; the result is as good.
    CHECK(a == Approx(b).epsilon(0.02));
  }
}

// Does some matrices, and leaves others to the CPU.
class FakeDevice final : public IdleDevice {
 public:
  explicit FakeDevice(bool can) : can_(can) {}
  std::optional<QuantizedMatrix> Gptq(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const GptqFactor& factor,
                                      const GptqOptions& options) override {
    ++asked;
    if (!can_) return std::nullopt;
    QuantizedMatrix q = *QuantizeGptq(layout, weights, factor, options);
    q.codes[0] ^= 1;
    return q;
  }

  int asked = 0;

 private:
  const bool can_;
};

TEST_CASE("a device rounds, and what it leaves the CPU does") {
  const std::vector<float> w = Normal(kRows * kHidden, 0.05f, 1), x = Inputs(2048, kHidden, 3);
  const auto factor = FactorMoments(Moments(x), {});
  REQUIRE_OK(factor.status());
  const MatrixLayout m = Layout("w4a16_g128");
  const auto right = QuantizeGptq(m, w, *factor);
  REQUIRE_OK(right.status());
  for (const bool can : {false, true}) {
    FakeDevice device(can);
    const auto found = QuantizeGptq(m, w, *factor, {}, &device);
    REQUIRE_OK(found.status());
    CHECK(device.asked == 1);
    CHECK((found->codes == right->codes) == !can);
    CHECK(found->scales == right->scales);
  }
}

// As kernels/cuda/offline/round_columns.cu rounds.
TEST_CASE("a device's codes are those of the CPU, with what they stand for") {
  std::mt19937 rng(4);
  std::uniform_real_distribution<float> magnitude(-9, 3);
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.is_bf16() || scheme.scales == ScaleType::kE4M3) continue;
    const cuda::RoundingForm form = MakeRoundingForm(scheme);
    INFO(scheme.Name());
    int apart = 0;
    for (int i = 0; i < 20000; ++i) {
      GroupScale group{std::exp2(std::floor(magnitude(rng))) * (i % 3 == 0 ? 1.0f : 1.37f), 0};
      if (i % 50 == 0) group.scale = 0;
      if (!scheme.symmetric) {
        group.offset = scheme.zero_points ? static_cast<float>(i % 9) : group.scale * 1.625f;
      }
      // Every seventh is halfway between two codes of integers, or of floats of few bits.
      float weight = std::exp2(magnitude(rng)) * (i % 2 == 0 ? 1.0f : -1.0f);
      if (i % 7 == 0) weight = group.scale * (static_cast<float>(i % 13) - 6.5f);
      const cuda::RoundedWeight rounded = RoundWeight(form, {group.scale, group.offset}, weight);
      const uint8_t code = RoundToCode(scheme, group, weight);
      const float back = RestoreCode(scheme, group, code);
      if (rounded.code != code || rounded.back != back) ++apart;
    }
    CHECK(apart == 0);
  }
}

TEST_CASE("tokens that count more are served better") {
  const std::vector<float> w = Normal(kRows * kHidden, 0.05f, 2), x = Inputs(2000, kHidden, 8);
  std::vector<float> weights(2000, 0.05f);
  for (size_t t = 0; t < 400; ++t) weights[t] = 1.0f;
  const MatrixLayout m = Layout("w2a16_g128_asym");
  InputMoments weighted(kHidden);
  REQUIRE_OK(weighted.Add(x, weights));
  const auto by_weight = QuantizeGptq(m, w, *FactorMoments(weighted, {}));
  const auto plain = QuantizeGptq(m, w, *FactorMoments(Moments(x), {}));
  REQUIRE_OK(by_weight.status());
  REQUIRE_OK(plain.status());
  CHECK(OutputError(x, w, Dequantize(m.scheme, *by_weight), kHidden, weights) <
        OutputError(x, w, Dequantize(m.scheme, *plain), kHidden, weights));
}

TEST_CASE("trap: fewer tokens than inputs make the moments singular, damping makes them regular") {
  const std::vector<float> w = Normal(kRows * kHidden, 0.05f, 2), x = Inputs(20, kHidden, 9);
  const auto factor = FactorMoments(Moments(x), {});
  REQUIRE_OK(factor.status());
  const MatrixLayout m = Layout("w4a16_g128");
  const auto q = QuantizeGptq(m, w, *factor);
  REQUIRE_OK(q.status());
  for (const float v : Dequantize(m.scheme, *q)) CHECK(std::isfinite(v));
  // Two inputs that are always equal, and a scale at which single precision would overflow.
  std::vector<float> twins = Inputs(2000, kHidden, 10);
  for (size_t t = 0; t < 2000; ++t) {
    twins[t * kHidden + 9] = twins[t * kHidden + 4];
    for (int64_t c = 0; c < kHidden; ++c) twins[t * kHidden + c] *= 1e-12f;
  }
  CHECK(FactorMoments(Moments(twins), {}).ok());
}

TEST_CASE("trap: a factorization that fails is repeated with more damping, then is an error") {
  // One direction only, and no damping to begin with: singular until the first retry.
  std::vector<float> x(64 * kHidden);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i / kHidden % 7) + 1.0f;
  GptqOptions tiny;
  tiny.damping = 1e-30;
  tiny.damping_attempts = 40;
  const auto factor = FactorMoments(Moments(x), tiny);
  REQUIRE_OK(factor.status());
  CHECK(factor->damping > 1e-30);
  tiny.damping_attempts = 1;
  const auto failed = FactorMoments(Moments(x), tiny);
  CHECK(absl::IsFailedPrecondition(failed.status()));
  CHECK_THAT(std::string(failed.status().message()), Catch::Contains("cannot be factored"));
}

TEST_CASE("trap: no tokens, and inputs that are all zero, are errors to fall back from") {
  CHECK(absl::IsFailedPrecondition(FactorMoments(InputMoments(kHidden), {}).status()));
  const std::vector<float> zeros(10 * kHidden, 0.0f);
  CHECK(absl::IsFailedPrecondition(FactorMoments(Moments(zeros), {}).status()));
}

TEST_CASE("trap: inputs that were always zero do not delete their weights") {
  const std::vector<float> w = Normal(kRows * kHidden, 0.05f, 2);
  std::vector<float> x = Inputs(1024, kHidden, 11);
  for (size_t t = 0; t < 1024; ++t) {
    for (const int64_t dead : {0, 17, 130, 255}) x[t * kHidden + dead] = 0;
  }
  const auto factor = FactorMoments(Moments(x), {});
  REQUIRE_OK(factor.status());
  CHECK(factor->dead_columns == 4);
  const MatrixLayout m = Layout("w4a16_g128");
  const auto q = QuantizeGptq(m, w, *factor);
  REQUIRE_OK(q.status());
  const std::vector<float> back = Dequantize(m.scheme, *q);
  for (int64_t r = 0; r < kRows; ++r) {
    for (const int64_t dead : {0, 17, 130, 255}) {
      const int64_t i = r * kHidden + dead;
      const float step = q->scales[r * 2 + dead / 128];
      CHECK(std::fabs(back[i] - w[i]) <= 4 * step);  // not zeroed, at most clipped
      if (std::fabs(w[i]) > step) CHECK(back[i] != 0);
    }
  }
}

TEST_CASE("trap: what is not finite is refused, and never becomes a scale") {
  std::vector<float> x = Inputs(100, kHidden, 12);
  x[1234] = std::numeric_limits<float>::quiet_NaN();
  InputMoments moments(kHidden);
  CHECK(absl::IsInvalidArgument(moments.Add(x, {})));
  CHECK(moments.tokens() == 0);
  const auto factor = FactorMoments(Moments(Inputs(1000, kHidden, 13)), {});
  REQUIRE_OK(factor.status());
  std::vector<float> w = Normal(kRows * kHidden, 0.05f, 2);
  w[77] = std::numeric_limits<float>::infinity();
  const MatrixLayout m = Layout("w4a16_g128");
  CHECK_FALSE(QuantizeGptq(m, w, *factor).ok());
  CHECK(absl::IsInvalidArgument(QuantizeGptq(Layout("w4a16_g128"), w, GptqFactor{}).status()));
}

}  // namespace
}  // namespace moert::test
