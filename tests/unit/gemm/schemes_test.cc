// Every scheme through MixedGroupGemm, with every kernel set: against the oracle, and bit for bit
// against itself however the work is cut.
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

constexpr ActivationNumerics kAllNumerics[] = {ActivationNumerics::kBF16, ActivationNumerics::kF32,
                                               ActivationNumerics::kInt8, ActivationNumerics::kFp8};

std::unique_ptr<ThreadPool> MakePool(int threads) {
  ThreadPoolOptions options;
  options.threads = threads;
  auto pool = CreateThreadPool(options);
  REQUIRE_OK(pool.status());
  return *std::move(pool);
}

std::unique_ptr<MixedGroupGemm> MakeGemm(ThreadPool* pool, const std::string& kernels,
                                         ActivationNumerics numerics) {
  auto gemm = MixedGroupGemm::Create(pool, kernels, numerics);
  REQUIRE_OK(gemm.status());
  return *std::move(gemm);
}

std::vector<float> RandomRows(int64_t rows, int64_t hidden, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> x(static_cast<size_t>(rows * hidden));
  for (float& value : x) value = normal(rng);
  return x;
}

std::vector<int32_t> Iota(int64_t n, int32_t first = 0) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), first);
  return v;
}

// The largest error over the tolerance.
double WorstError(MixedGroupGemm* gemm, ActivationNumerics numerics, const ExpertRecord& expert,
                  int64_t n) {
  const int64_t hidden = expert.layout.gate.k;
  const std::vector<float> x = RandomRows(n, hidden, 2);
  std::vector<float> out(x.size(), std::numeric_limits<float>::quiet_NaN());
  const std::vector<int32_t> rows = Iota(n);
  const ExpertProblem problem = {expert.record(), &expert.layout, Activation::kSilu, rows, rows};
  REQUIRE_OK(gemm->Run(x.data(), n, hidden, {&problem, 1}, out.data()));
  std::vector<float> expected(static_cast<size_t>(hidden)), tolerance(expected.size());
  double worst = 0;
  for (int64_t row = 0; row < n; ++row) {
    if (n > 3 && row % 15 != 0 && row != n - 1) continue;  // the oracle is slow
    REQUIRE_OK(test::ReferenceExpertMlp(expert.record(), expert.layout, Activation::kSilu, numerics,
                                        x.data() + row * hidden, expected.data(),
                                        tolerance.data()));
    for (size_t i = 0; i < expected.size(); ++i) {
      const double got = out[static_cast<size_t>(row * hidden) + i];
      const double error = std::abs(got - expected[i]) / (tolerance[i] + 1e-6);
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  }
  return worst;
}

std::vector<ExpertFormat> Formats() {
  std::vector<ExpertFormat> formats;
  for (const Scheme& scheme : Scheme::All()) formats.push_back(ExpertFormat::Uniform(scheme));
  const auto scheme = [](const char* name) { return *Scheme::Parse(name); };
  formats.push_back({scheme("w4a16_g128"), scheme("w4a16_g128"), scheme("w8a8")});
  formats.push_back({scheme("w2a16_g64_asym"), scheme("w2a16_g64_asym"), scheme("bf16")});
  formats.push_back({scheme("bf16"), scheme("w4a8_g128"), scheme("w3a16_g128_asym")});
  formats.push_back({scheme("w8a8_fp8"), scheme("w2a16_g-1_asym"), scheme("w4a4")});
  // In the Hadamard domain: operands of every kind, an h that is packed by pieces without it.
  for (const char* name : {"w4a4_g128", "w2a16_g64_asym", "bf16", "w8a8_fp8"}) {
    formats.push_back(ExpertFormat::Uniform(scheme(name), /*hadamard=*/true));
  }
  formats.push_back({scheme("w8a8"), scheme("w4a8_g128"), scheme("bf16"), /*hadamard=*/true});
  return formats;
}

std::string NameOf(const ExpertFormat& format) {
  return format.gate.Name() + " " + format.up.Name() + " " + format.down.Name() +
         (format.hadamard ? " hadamard" : "");
}

TEST_CASE("every scheme agrees with the oracle in every kernel set") {
  const std::string kernels = GENERATE(from_range(MixedGroupGemm::KernelNames()));
  const auto numerics = GENERATE(from_range(std::begin(kAllNumerics), std::end(kAllNumerics)));
  const auto pool = MakePool(2);
  const auto gemm = MakeGemm(pool.get(), kernels, numerics);
  for (const ExpertFormat& format : Formats()) {
    const auto check = [&](int64_t hidden, int64_t intermediate, int64_t n) {
      INFO(kernels << " numerics " << static_cast<int>(numerics) << " " << NameOf(format)
                   << " hidden " << hidden << " intermediate " << intermediate << " tokens " << n);
      const ExpertRecord expert = RandomExpert(hidden, intermediate, 1, format);
      CHECK(WorstError(gemm.get(), numerics, expert, n) <= 1.0);
    };
    if (format.gate.scales == ScaleType::kF16) {  // else as their like with bf16 scales
      check(65, 130, 1);
      check(66, 70, 64);
      continue;
    }
    for (const auto& [hidden, intermediate] : std::vector<std::pair<int64_t, int64_t>>{
             {64, 64}, {1, 1}, {17, 3}, {65, 130}, {200, 72}}) {
      check(hidden, intermediate, 1);
    }
    check(257, 72, 3);
    check(80, 48, 17);
    check(66, 70, 64);
  }
}

// With one channel the code of h is the largest one, so that the product shows h itself.
TEST_CASE("an h that is quantized is rounded to bf16 before") {
  constexpr int64_t kRows = 16;
  const auto pool = MakePool(1);
  const std::vector<float> x = RandomRows(kRows, 1, 2);
  const std::vector<int32_t> rows = Iota(kRows);
  for (const std::string& kernels : MixedGroupGemm::KernelNames()) {
    const auto gemm = MakeGemm(pool.get(), kernels, ActivationNumerics::kBF16);
    for (const char* scheme : {"w8a8", "w4a8_g128", "w8a8_fp8", "w4a4"}) {
      INFO(kernels << " " << scheme);
      const ExpertRecord expert =
          RandomExpert(1, 1, 1, ExpertFormat::Uniform(*Scheme::Parse(scheme)));
      const ExpertProblem problem = {expert.record(), &expert.layout, Activation::kSilu, rows,
                                     rows};
      std::vector<float> out(kRows);
      REQUIRE_OK(gemm->Run(x.data(), kRows, 1, {&problem, 1}, out.data()));
      for (int64_t row = 0; row < kRows; ++row) {
        float expected = 0;
        REQUIRE_OK(test::ReferenceExpertMlp(expert.record(), expert.layout, Activation::kSilu,
                                            ActivationNumerics::kBF16, &x[row], &expected));
        CHECK(std::abs(out[row] - expected) <= 1e-4 * std::abs(expected));
      }
    }
  }
}

TEST_CASE("numerics change what they promise to change") {
  const auto pool = MakePool(1);
  const auto run = [&](const char* scheme, ActivationNumerics numerics) {
    const ExpertRecord expert =
        RandomExpert(128, 96, 1, ExpertFormat::Uniform(*Scheme::Parse(scheme)));
    const std::vector<float> x = RandomRows(1, 128, 2);
    std::vector<float> out(128);
    const std::vector<int32_t> row = {0};
    const ExpertProblem problem = {expert.record(), &expert.layout, Activation::kSilu, row, row};
    const auto gemm = MakeGemm(pool.get(), "reference", numerics);
    REQUIRE_OK(gemm->Run(x.data(), 1, 128, {&problem, 1}, out.data()));
    return out;
  };
  const auto bf16 = ActivationNumerics::kBF16;
  const auto f32 = ActivationNumerics::kF32;
  const auto int8 = ActivationNumerics::kInt8;
  for (const char* a16 : {"w4a16_g128", "w2a16_g64_asym"}) {
    CHECK(run(a16, bf16) != run(a16, f32));
    CHECK(run(a16, bf16) != run(a16, int8));
  }
  for (const char* own : {"w4a8_g128", "w8a8", "w4a4", "w8a8_fp8"}) {
    CHECK(run(own, bf16) == run(own, f32));
    CHECK(run(own, bf16) == run(own, int8));
  }
  CHECK(run("bf16", bf16) == run("bf16", int8));
  const auto fp8 = ActivationNumerics::kFp8;
  CHECK(run("fp8_b128", bf16) == run("fp8_b128", int8));
  CHECK(run("fp8_b128", bf16) != run("fp8_b128", fp8));
  for (const char* other : {"bf16", "w4a16_g128", "mxfp4", "w8a8_fp8"}) {
    CHECK(run(other, bf16) == run(other, fp8));
  }
}

// Integer activations, from end to end: the sets differ in instructions only. The reference set has
// an exponential of its own in SiLU, so its h may round to another code.
TEST_CASE("integer schemes give the same bits in every SIMD set") {
  const auto pool = MakePool(2);
  std::vector<std::string> names = MixedGroupGemm::KernelNames();
  names.pop_back();
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.is_bf16() || scheme.fp8 || scheme.imported()) continue;
    const ExpertRecord expert = RandomExpert(320, 208, 1, ExpertFormat::Uniform(scheme));
    for (const int64_t n : {7, 75}) {  // 75: weights that are kept as tiles
      const std::vector<float> x = RandomRows(n, 320, 2);
      const std::vector<int32_t> rows = Iota(n);
      const ExpertProblem problem = {expert.record(), &expert.layout, Activation::kSilu, rows,
                                     rows};
      std::vector<float> first;
      for (const std::string& name : names) {
        INFO(name << " " << scheme.Name() << " tokens " << n);
        std::vector<float> out(x.size());
        const auto gemm = MakeGemm(pool.get(), name, ActivationNumerics::kInt8);
        REQUIRE_OK(gemm->Run(x.data(), n, 320, {&problem, 1}, out.data()));
        if (first.empty()) first = out;
        CHECK(out == first);
      }
    }
  }
}

// Experts of several formats over overlapping tokens, in one call.
TEST_CASE("mixed formats are bit-identical however a layer is cut") {
  const std::string kernels = GENERATE(from_range(MixedGroupGemm::KernelNames()));
  const auto numerics = GENERATE(from_range(std::begin(kAllNumerics), std::end(kAllNumerics)));
  INFO(kernels << " numerics " << static_cast<int>(numerics));
  const int64_t hidden = 200, rows = 20;
  const auto width = static_cast<size_t>(hidden);
  const std::vector<float> x = RandomRows(rows, hidden, 3);
  std::vector<ExpertRecord> experts;
  for (const ExpertFormat& format : Formats()) {
    const auto i = static_cast<int64_t>(experts.size());
    experts.push_back(RandomExpert(hidden, 33 + 16 * (i % 5), static_cast<uint32_t>(i), format));
  }
  const auto problem = [&](size_t e, absl::Span<const int32_t> tokens,
                           absl::Span<const int32_t> out_rows) {
    return ExpertProblem{experts[e].record(), &experts[e].layout, Activation::kSilu, tokens,
                         out_rows};
  };

  // One row of one expert at a time: the definition.
  const auto single_pool = MakePool(1);
  const auto single = MakeGemm(single_pool.get(), kernels, numerics);
  std::vector<std::vector<float>> expected;
  for (size_t e = 0; e < experts.size(); ++e) {
    std::vector<float> out(static_cast<size_t>(rows) * width);
    for (int32_t row = 0; row < rows; ++row) {
      const std::vector<int32_t> token = {row};
      const ExpertProblem one = problem(e, token, token);
      REQUIRE_OK(single->Run(x.data(), rows, hidden, {&one, 1}, out.data()));
    }
    expected.push_back(std::move(out));
  }

  std::mt19937 rng(4);
  for (const int threads : {1, 3}) {
    const auto pool = MakePool(threads);
    const auto gemm = MakeGemm(pool.get(), kernels, numerics);
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<std::vector<int32_t>> tokens(experts.size()), out_rows(experts.size());
      std::vector<ExpertProblem> problems;
      int32_t slots = 0;
      for (size_t e = 0; e < experts.size(); ++e) {
        tokens[e] = Iota(rows);
        std::shuffle(tokens[e].begin(), tokens[e].end(), rng);
        if (trial > 0) tokens[e].resize(rng() % 12);
        out_rows[e] = Iota(static_cast<int64_t>(tokens[e].size()), slots);
        slots += static_cast<int32_t>(tokens[e].size());
      }
      for (size_t e = 0; e < experts.size(); ++e) {
        problems.push_back(problem(e, tokens[e], out_rows[e]));
      }
      std::shuffle(problems.begin(), problems.end(), rng);
      std::vector<float> out(static_cast<size_t>(slots) * width);
      REQUIRE_OK(gemm->Run(x.data(), rows, hidden, problems, out.data()));
      for (size_t e = 0; e < experts.size(); ++e) {
        int64_t different = 0;
        for (size_t i = 0; i < tokens[e].size(); ++i) {
          different += !std::equal(out.begin() + out_rows[e][i] * hidden,
                                   out.begin() + (out_rows[e][i] + 1) * hidden,
                                   expected[e].begin() + tokens[e][i] * hidden);
        }
        INFO(NameOf(experts[e].layout.format));
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("a row that is not finite stays alone, and gives NaN") {
  const std::string kernels = GENERATE(from_range(MixedGroupGemm::KernelNames()));
  const auto numerics = GENERATE(ActivationNumerics::kBF16, ActivationNumerics::kInt8);
  const auto pool = MakePool(2);
  const auto gemm = MakeGemm(pool.get(), kernels, numerics);
  const int64_t hidden = 48, n = 5;
  for (const Scheme& scheme : Scheme::All()) {
    INFO(kernels << " " << scheme.Name());
    const ExpertRecord expert = RandomExpert(hidden, 20, 1, ExpertFormat::Uniform(scheme));
    std::vector<float> x = RandomRows(n, hidden, 2);
    x[2 * 48 + 7] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(x.size(), 0.0f);
    const std::vector<int32_t> rows = Iota(n);
    const ExpertProblem problem = {expert.record(), &expert.layout, Activation::kSilu, rows, rows};
    REQUIRE_OK(gemm->Run(x.data(), n, hidden, {&problem, 1}, out.data()));
    int64_t wrong = 0;
    for (size_t i = 0; i < out.size(); ++i) wrong += std::isnan(out[i]) != (i / 48 == 2);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a run keeps to the workspace that was announced for its formats") {
  const auto pool = MakePool(1);
  const auto gemm = MakeGemm(pool.get(), "auto", ActivationNumerics::kBF16);
  const std::vector<ExpertFormat> bf16 = {ExpertFormat::Uniform(Scheme{})};
  std::vector<ExpertFormat> all = Formats();
  int64_t last = gemm->WorkspaceBytes(4, 8, 256, 128, bf16);
  // More formats never need less.
  for (size_t count = 1; count <= all.size(); ++count) {
    const int64_t bytes =
        gemm->WorkspaceBytes(4, 8, 256, 128, absl::MakeConstSpan(all).first(count));
    CHECK(bytes >= last);
    last = bytes;
  }
}

}  // namespace
}  // namespace moert
