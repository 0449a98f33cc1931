#include "moert/mixed_group_gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "tests/support/catch.h"
#include "tests/support/expert_record.h"
#include "tests/support/reference_expert.h"

namespace moert {
namespace {

using test::ExpertRecord;
using test::RandomExpert;

constexpr float kUnwritten = -12345.0f;

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
  CHECK((*gemm)->kernels() == kernels);
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

ExpertProblem Problem(const ExpertRecord& expert, const std::vector<int32_t>& tokens,
                      const std::vector<int32_t>& out_rows,
                      Activation activation = Activation::kSilu) {
  return {expert.record(), &expert.layout, activation, tokens, out_rows};
}

void CheckAgainstOracle(MixedGroupGemm* gemm, ActivationNumerics numerics,
                        const ExpertRecord& expert, int64_t n, Activation activation) {
  const int64_t hidden = expert.layout.gate.k;
  INFO("hidden " << hidden << " intermediate " << expert.layout.gate.rows << " tokens " << n
                 << " activation " << static_cast<int>(activation));
  const std::vector<float> x = RandomRows(n, hidden, 2);
  std::vector<float> out(x.size(), kUnwritten);
  const std::vector<int32_t> rows = Iota(n);
  const ExpertProblem problem = Problem(expert, rows, rows, activation);
  REQUIRE_OK(gemm->Run(x.data(), n, hidden, {&problem, 1}, out.data()));
  std::vector<float> expected(static_cast<size_t>(hidden));
  std::vector<float> tolerance(static_cast<size_t>(hidden));
  double worst = 0;
  for (int64_t row = 0; row < n; ++row) {
    REQUIRE_OK(test::ReferenceExpertMlp(expert.record(), expert.layout, activation, numerics,
                                        x.data() + row * hidden, expected.data(),
                                        tolerance.data()));
    for (int64_t i = 0; i < hidden; ++i) {
      const float got = out[static_cast<size_t>(row * hidden + i)];
      const auto at = static_cast<size_t>(i);
      const double error = std::abs(static_cast<double>(got) - expected[at]);
      worst = std::max(worst, std::isnan(got) ? std::numeric_limits<double>::infinity()
                                              : error / (tolerance[at] + 1e-6));
    }
  }
  CHECK(worst <= 1.0);
}

void CheckAgainstOracle(MixedGroupGemm* gemm, ActivationNumerics numerics, int64_t hidden,
                        int64_t intermediate, int64_t n, Activation activation) {
  CheckAgainstOracle(gemm, numerics, RandomExpert(hidden, intermediate, 1), n, activation);
}

TEST_CASE("every kernel set agrees with the oracle") {
  const std::string kernels = GENERATE(from_range(MixedGroupGemm::KernelNames()));
  const auto numerics = GENERATE(ActivationNumerics::kBF16, ActivationNumerics::kF32);
  INFO(kernels << " numerics " << static_cast<int>(numerics));
  const auto pool = MakePool(2);
  const auto gemm = MakeGemm(pool.get(), kernels, numerics);
  for (const auto& [hidden, intermediate] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 64}, {128, 96}, {1, 1}, {17, 3}, {65, 33}, {200, 72}, {72, 200}}) {
    for (const int64_t n : {1, 2, 3, 5, 9}) {
      CheckAgainstOracle(gemm.get(), numerics, hidden, intermediate, n, Activation::kSilu);
    }
  }
  for (int64_t n = 1; n <= 17; ++n) {
    CheckAgainstOracle(gemm.get(), numerics, 80, 48, n, Activation::kSilu);
  }
  CheckAgainstOracle(gemm.get(), numerics, 130, 70, 64, Activation::kSilu);
  CheckAgainstOracle(gemm.get(), numerics, 1024, 600, 4, Activation::kSilu);
  for (const int64_t n : {1, 4, 64}) {
    CheckAgainstOracle(gemm.get(), numerics, 96, 40, n, Activation::kGelu);
    CheckAgainstOracle(gemm.get(), numerics, 96, 40, n, Activation::kGeluTanh);
  }
}

TEST_CASE("the tolerance is tight enough to see one wrong weight and unrounded activations") {
  const int64_t hidden = 128, intermediate = 96;
  ExpertRecord expert = RandomExpert(hidden, intermediate, 1);
  const std::vector<float> x = RandomRows(1, hidden, 2);
  std::vector<float> right(128), scale(128), wrong(128);
  const auto oracle = [&](ActivationNumerics numerics, std::vector<float>* out, float* tolerance) {
    REQUIRE_OK(test::ReferenceExpertMlp(expert.record(), expert.layout, Activation::kSilu, numerics,
                                        x.data(), out->data(), tolerance));
  };
  const auto exceeds = [&] {
    for (size_t i = 0; i < right.size(); ++i) {
      if (std::abs(right[i] - wrong[i]) > scale[i] + 1e-6f) return true;
    }
    return false;
  };
  oracle(ActivationNumerics::kF32, &right, scale.data());
  oracle(ActivationNumerics::kBF16, &wrong, nullptr);
  CHECK(exceeds());
  oracle(ActivationNumerics::kBF16, &right, scale.data());
  auto* weights = reinterpret_cast<uint16_t*>(expert.bytes.data());
  std::swap(weights[1000], weights[1002]);
  oracle(ActivationNumerics::kBF16, &wrong, nullptr);
  CHECK(exceeds());
}

// Several experts of different widths over overlapping tokens, run as a whole with one thread.
TEST_CASE("results are bit-identical however a layer is cut") {
  const std::string kernels = GENERATE(from_range(MixedGroupGemm::KernelNames()));
  const auto numerics = GENERATE(ActivationNumerics::kBF16, ActivationNumerics::kF32);
  INFO(kernels << " numerics " << static_cast<int>(numerics));
  const int64_t hidden = 200, rows = 150;
  const std::vector<float> x = RandomRows(rows, hidden, 3);
  std::vector<ExpertRecord> experts;
  for (const int64_t intermediate : {72, 160, 33}) {
    experts.push_back(RandomExpert(hidden, intermediate, static_cast<uint32_t>(intermediate)));
  }

  // One row at a time: the definition.
  const auto single_pool = MakePool(1);
  const auto single = MakeGemm(single_pool.get(), kernels, numerics);
  const auto width = static_cast<size_t>(hidden);
  std::vector<std::vector<float>> expected;
  const bool slow = kernels == "reference";
  const int64_t used = slow ? 20 : rows;
  for (const ExpertRecord& expert : experts) {
    std::vector<float> out(static_cast<size_t>(used) * width, kUnwritten);
    for (int32_t row = 0; row < used; ++row) {
      const std::vector<int32_t> token = {row};
      const ExpertProblem problem = Problem(expert, token, token);
      REQUIRE_OK(single->Run(x.data(), rows, hidden, {&problem, 1}, out.data()));
    }
    expected.push_back(std::move(out));
  }

  std::mt19937 rng(4);
  for (const int threads : {1, 2, 5}) {
    const auto pool = MakePool(threads);
    const auto gemm = MakeGemm(pool.get(), kernels, numerics);
    for (int trial = 0; trial < 8; ++trial) {
      INFO("threads " << threads << " trial " << trial);
      // Random subsets in random order, output rows shuffled, sizes from none to all.
      std::vector<std::vector<int32_t>> tokens(experts.size()), out_rows(experts.size());
      std::vector<ExpertProblem> problems;
      int32_t slots = 0;
      for (size_t e = 0; e < experts.size(); ++e) {
        tokens[e] = Iota(used);
        std::shuffle(tokens[e].begin(), tokens[e].end(), rng);
        const auto all = static_cast<uint32_t>(used);
        tokens[e].resize(trial == 0 ? all : rng() % (trial % 2 == 0 ? all + 1 : 12));
        slots += static_cast<int32_t>(tokens[e].size());
      }
      std::vector<int32_t> order = Iota(slots);
      std::shuffle(order.begin(), order.end(), rng);
      int32_t next = 0;
      for (size_t e = 0; e < experts.size(); ++e) {
        for (size_t i = 0; i < tokens[e].size(); ++i) {
          out_rows[e].push_back(order[static_cast<size_t>(next++)]);
        }
        problems.push_back(Problem(experts[e], tokens[e], out_rows[e]));
      }
      std::shuffle(problems.begin(), problems.end(), rng);
      std::vector<float> out(static_cast<size_t>(slots) * width + 1, kUnwritten);
      REQUIRE_OK(gemm->Run(x.data(), rows, hidden, problems, out.data()));
      CHECK(out.back() == kUnwritten);
      int64_t different = 0;
      for (size_t e = 0; e < experts.size(); ++e) {
        for (size_t i = 0; i < tokens[e].size(); ++i) {
          different += !std::equal(out.begin() + out_rows[e][i] * hidden,
                                   out.begin() + (out_rows[e][i] + 1) * hidden,
                                   expected[e].begin() + tokens[e][i] * hidden);
        }
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("a row of NaN stays alone") {
  const std::string kernels = GENERATE(from_range(MixedGroupGemm::KernelNames()));
  const auto pool = MakePool(2);
  const auto gemm = MakeGemm(pool.get(), kernels, ActivationNumerics::kBF16);
  const int64_t hidden = 48, n = 5;
  const ExpertRecord expert = RandomExpert(hidden, 20, 1);
  std::vector<float> x = RandomRows(n, hidden, 2);
  x[2 * 48 + 7] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(x.size(), 0.0f);
  const std::vector<int32_t> rows = Iota(n);
  const ExpertProblem problem = Problem(expert, rows, rows);
  REQUIRE_OK(gemm->Run(x.data(), n, hidden, {&problem, 1}, out.data()));
  for (size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i / 48 == 2));
}

TEST_CASE("nothing to do") {
  const auto pool = MakePool(2);
  const auto gemm = MakeGemm(pool.get(), "reference", ActivationNumerics::kBF16);
  const ExpertRecord expert = RandomExpert(32, 16, 1);
  const std::vector<float> x = RandomRows(3, 32, 2);
  std::vector<float> out(96, kUnwritten);
  REQUIRE_OK(gemm->Run(x.data(), 3, 32, {}, out.data()));
  const std::vector<int32_t> none;
  const std::vector<int32_t> one = {1};
  const std::vector<ExpertProblem> problems = {
      Problem(expert, none, none), Problem(expert, one, one), Problem(expert, none, none)};
  REQUIRE_OK(gemm->Run(x.data(), 3, 32, {problems.data(), 1}, out.data()));
  REQUIRE_OK(gemm->Run(x.data(), 0, 32, {problems.data(), 1}, out.data()));
  CHECK(std::count(out.begin(), out.end(), kUnwritten) == 96);
  REQUIRE_OK(gemm->Run(x.data(), 3, 32, problems, out.data()));
  CHECK(std::count(out.begin(), out.end(), kUnwritten) == 64);
  CHECK(std::count(out.begin() + 32, out.begin() + 64, kUnwritten) == 0);
}

TEST_CASE("illegal problems are refused, by what is wrong") {
  const auto pool = MakePool(1);
  const auto gemm = MakeGemm(pool.get(), "reference", ActivationNumerics::kBF16);
  const ExpertRecord expert = RandomExpert(32, 16, 1);
  const std::vector<float> x = RandomRows(3, 32, 2);
  std::vector<float> out(96);
  const std::vector<int32_t> one = {1}, two = {1, 2}, high = {3}, negative = {-1};
  const auto run = [&](const ExpertProblem& problem, int64_t hidden = 32) {
    return gemm->Run(x.data(), 3, hidden, {&problem, 1}, out.data());
  };
  const ExpertProblem good = Problem(expert, one, one);
  CHECK(run(good).ok());
  ExpertProblem bad = good;
  bad.record = nullptr;
  CHECK(run(bad).code() == absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.layout = nullptr;
  CHECK(run(bad).code() == absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.activation = static_cast<Activation>(4);
  CHECK(run(bad).code() == absl::StatusCode::kInvalidArgument);
  CHECK(run(Problem(expert, two, one)).code() == absl::StatusCode::kInvalidArgument);
  CHECK(run(Problem(expert, high, one)).code() == absl::StatusCode::kInvalidArgument);
  CHECK(run(Problem(expert, negative, one)).code() == absl::StatusCode::kInvalidArgument);
  CHECK(run(Problem(expert, one, negative)).code() == absl::StatusCode::kInvalidArgument);
  CHECK(run(good, 31).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("unknown kernel sets are refused with the legal names") {
  const auto pool = MakePool(1);
  const absl::Status status =
      MixedGroupGemm::Create(pool.get(), "sse9", ActivationNumerics::kBF16).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  CHECK(message.find("sse9") != std::string::npos);
  CHECK(message.find("auto") != std::string::npos);
  const std::vector<std::string> names = MixedGroupGemm::KernelNames();
  REQUIRE_FALSE(names.empty());
  CHECK(names.back() == "reference");
  for (const std::string& name : names) CHECK(message.find(name) != std::string::npos);
  const auto best = MixedGroupGemm::Create(pool.get(), "auto", ActivationNumerics::kBF16);
  REQUIRE_OK(best.status());
  CHECK((*best)->kernels() == names.front());
  CHECK(MixedGroupGemm::Create(pool.get(), "auto", static_cast<ActivationNumerics>(4))
            .status()
            .code() == absl::StatusCode::kInvalidArgument);
  CHECK(MixedGroupGemm::Create(nullptr, "auto", ActivationNumerics::kBF16).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("the workspace grows with each of its dimensions") {
  const auto pool = MakePool(1);
  const auto gemm = MakeGemm(pool.get(), "reference", ActivationNumerics::kF32);
  const std::vector<ExpertFormat> bf16 = {ExpertFormat::Uniform(Scheme{})};
  const int64_t base = gemm->WorkspaceBytes(4, 8, 256, 128, bf16);
  CHECK(base >= (4 * 256 + 8 * 128) * 4);
  CHECK(gemm->WorkspaceBytes(5, 8, 256, 128, bf16) > base);
  CHECK(gemm->WorkspaceBytes(4, 9, 256, 128, bf16) > base);
  CHECK(gemm->WorkspaceBytes(4, 8, 257, 128, bf16) > base);
  CHECK(gemm->WorkspaceBytes(4, 8, 256, 129, bf16) > base);
  CHECK(gemm->WorkspaceBytes(4, 8, 256, 128,
                             {{bf16[0], ExpertFormat::Uniform(*Scheme::Parse("w8a8"))}}) > base);
}

}  // namespace
}  // namespace moert
