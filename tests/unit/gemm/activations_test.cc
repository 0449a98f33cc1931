// The function between an expert's products, its biases and a missing gate: every kernel set
// against the oracle, and bit for bit however the tokens are cut.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "moert/mixed_group_gemm.h"
#include "tests/support/catch.h"
#include "tests/support/expert_record.h"
#include "tests/support/reference_expert.h"

namespace moert {
namespace {

using test::ExpertRecord;
using test::RandomExpert;

struct Semantics {
  const char* name;
  ExpertActivation activation;
  bool biases;
};

std::vector<Semantics> All() {
  ExpertActivation gpt_oss = Activation::kSilu, clamped = Activation::kSilu, ungated;
  gpt_oss.alpha = 1.702f, gpt_oss.limit = 1.5f, gpt_oss.up_offset = 1;
  clamped.limit = 0.75f;
  ungated = Activation::kRelu2;
  ungated.gated = false;
  ExpertActivation ungated_silu = Activation::kSilu;
  ungated_silu.gated = false, ungated_silu.alpha = 1.25f;
  return {{"gpt-oss", gpt_oss, true},           {"clamped", clamped, false},
          {"relu2", Activation::kRelu2, false}, {"gelu with biases", Activation::kGelu, true},
          {"ungated relu2", ungated, true},     {"ungated silu", ungated_silu, false}};
}

std::unique_ptr<MixedGroupGemm> MakeGemm(ThreadPool* pool, const std::string& kernels,
                                         ActivationNumerics numerics) {
  auto gemm = MixedGroupGemm::Create(pool, kernels, numerics);
  REQUIRE_OK(gemm.status());
  return *std::move(gemm);
}

std::vector<float> RandomRows(int64_t count) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(rng);
  return x;
}

std::vector<float> Multiply(MixedGroupGemm* gemm, const ExpertRecord& expert,
                            const ExpertActivation& activation, const std::vector<float>& x,
                            int64_t n) {
  const int64_t hidden = expert.layout.up.k;
  std::vector<float> out(static_cast<size_t>(n * hidden), std::numeric_limits<float>::quiet_NaN());
  std::vector<int32_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  const ExpertProblem problem = {expert.record(), &expert.layout, activation, rows, rows};
  REQUIRE_OK(gemm->Run(x.data(), n, hidden, {&problem, 1}, out.data()));
  return out;
}

TEST_CASE("activations, biases and experts without a gate agree with the oracle") {
  const std::string kernels = GENERATE(from_range(MixedGroupGemm::KernelNames()));
  const Semantics s = GENERATE(from_range(All()));
  ThreadPoolOptions options;
  options.threads = 2;
  const auto pool = CreateThreadPool(options);
  REQUIRE_OK(pool.status());
  for (const auto numerics : {ActivationNumerics::kF32, ActivationNumerics::kBF16}) {
    const auto gemm = MakeGemm(pool->get(), kernels, numerics);
    for (const char* scheme : {"bf16", "w4a16_g128", "w8a8", "mxfp4"}) {
      for (const auto& [hidden, width, n] :
           {std::tuple<int64_t, int64_t, int64_t>{64, 64, 1}, {65, 130, 3}, {80, 48, 17}}) {
        INFO(kernels << " " << s.name << " " << scheme << " numerics " << static_cast<int>(numerics)
                     << " " << hidden << " x " << width << " x " << n);
        const ExpertRecord expert =
            RandomExpert(hidden, width, 1, ExpertFormat::Uniform(*Scheme::Parse(scheme)),
                         {s.activation.gated, s.biases});
        const std::vector<float> x = RandomRows(n * hidden);
        const std::vector<float> out = Multiply(gemm.get(), expert, s.activation, x, n);
        std::vector<float> expected(static_cast<size_t>(hidden)), tolerance(expected.size());
        double worst = 0;
        for (int64_t row = 0; row < n; ++row) {
          REQUIRE_OK(test::ReferenceExpertMlp(expert.record(), expert.layout, s.activation,
                                              numerics, x.data() + row * hidden, expected.data(),
                                              tolerance.data()));
          for (size_t i = 0; i < expected.size(); ++i) {
            const double got = out[static_cast<size_t>(row * hidden) + i];
            const double error = std::abs(got - expected[i]) / (tolerance[i] + 1e-5);
            worst = std::isnan(error) ? 1e30 : std::max(worst, error);
          }
        }
        CHECK(worst <= 1.0);
        // One token alone gets the same bits.
        const std::vector<float> first =
            Multiply(gemm.get(), expert, s.activation, {x.begin(), x.begin() + hidden}, 1);
        CHECK(std::equal(first.begin(), first.end(), out.begin()));
      }
    }
  }
}

TEST_CASE("a problem whose record does not fit its activation is refused") {
  ThreadPoolOptions options;
  options.threads = 1;
  const auto pool = CreateThreadPool(options);
  const auto gemm = MakeGemm(pool->get(), "reference", ActivationNumerics::kF32);
  const ExpertRecord gated = RandomExpert(64, 64, 1);
  ExpertActivation ungated;
  ungated.gated = false;
  const std::vector<int32_t> rows = {0};
  std::vector<float> x(64), out(64);
  const ExpertProblem problem = {gated.record(), &gated.layout, ungated, rows, rows};
  CHECK(absl::IsInvalidArgument(gemm->Run(x.data(), 1, 64, {&problem, 1}, out.data())));
}

}  // namespace
}  // namespace moert
