// Many threads, one engine: steps overlap, budgets change, reads fail; every answer is right or an
// error of its own step.
#include <atomic>
#include <cstring>
#include <thread>

#include "moert/engine.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

TEST_CASE("threads share an engine: answers do not depend on who else is there") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{3, 12, 2, 64, 48, 32});
  const std::string strategy = GENERATE("on-demand", "fate");
  EngineOptions options;
  options.strategy = strategy;
  options.threads = 2;
  options.max_tokens_per_forward = 16;
  // The answer to each input, from an engine of its own.
  constexpr int kInputs = 6;
  std::vector<std::vector<float>> inputs, expected(kInputs);
  auto reference = Engine::Create(source, options);
  REQUIRE_OK(reference.status());
  HiddenProcess process(64, 21);
  for (int i = 0; i < kInputs; ++i) {
    inputs.push_back(process.Next(3));
    REQUIRE_OK(RunStep(reference->get(), Phase::kDecode, inputs[i], 3, &expected[i]));
  }

  options.budget = Budget::Fraction(0.3);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  std::atomic<int> wrong{0}, right{0}, failed{0};
  std::atomic<bool> running{true};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 25; ++round) {
        const int i = (t + round) % kInputs;
        std::vector<float> out;
        const absl::Status status = RunStep(engine->get(), Phase::kDecode, inputs[i], 3, &out);
        if (!status.ok()) {
          failed += status.code() == absl::StatusCode::kDataLoss;
          wrong += status.code() != absl::StatusCode::kDataLoss;
        } else if (out.size() == expected[i].size() &&
                   std::memcmp(out.data(), expected[i].data(), out.size() * sizeof(float)) == 0) {
          ++right;
        } else {
          ++wrong;
        }
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; running; ++i) {
      source->set_broken(i % 7 == 6);
      const double share[] = {0.3, 0.9, 0.2, 0.5};
      const absl::Status status = (*engine)->SetBudget(Budget::Fraction(share[i % 4]));
      const EngineStats stats = (*engine)->stats();
      wrong += !status.ok() || stats.fixed_bytes + stats.pool_bytes > stats.budget_bytes;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    source->set_broken(false);
  });
  for (int t = 0; t < 4; ++t) threads[t].join();
  running = false;
  threads.back().join();
  CHECK(wrong == 0);
  CHECK(right > 0);
  CHECK(right + failed == 4 * 25);
  // And after all that it still answers.
  std::vector<float> out;
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, inputs[0], 3, &out));
  CHECK(out == expected[0]);
}

TEST_CASE("threads read two versions while experts move between them and the budget changes") {
  constexpr int64_t kHidden = 128;
  // One expert a token: what a layer answers is the high version's output or the low one's, to the
  // bit. Bytes of neither, or of both, would show.
  const auto source = std::make_shared<SyntheticSource>(
      SyntheticShape{2, 12, 1, kHidden, 96, 0, false, false, true});
  const std::string strategy =
      GENERATE("dynaexq:hi=bf16,lo=low,interval_ms=0.05,beta=0,margin=0,noise=0,memory=1,spare=2",
               "graded:wait=0,hi=bf16,lo=low,n=4,margin=0");
  constexpr int kInputs = 8;
  EngineOptions options;
  options.threads = 2;
  options.max_tokens_per_forward = 4;
  std::vector<std::vector<float>> inputs;
  HiddenProcess process(kHidden, 3);
  for (int i = 0; i < kInputs; ++i) inputs.push_back(process.Next(1));
  // Each layer's answer to an input, on its own.
  const auto answers = [&](Engine* engine, const std::vector<float>& x,
                           std::vector<std::vector<float>>* out) {
    auto step = engine->BeginStep({Phase::kDecode, 1, {}});
    if (!step.ok()) return step.status();
    out->assign(2, std::vector<float>(kHidden));
    absl::Status status;
    for (int l = 0; l < 2; ++l) {
      status.Update(engine->Forward(*step, l, {x.data(), DType::kF32, 1, kHidden, kHidden},
                                    {(*out)[l].data(), DType::kF32, 1, kHidden, kHidden}));
    }
    status.Update(engine->EndStep(*step));
    return status;
  };
  std::vector<std::vector<std::vector<float>>> expected[2];
  for (int version = 0; version < 2; ++version) {
    options.strategy = version == 0 ? "resident:scheme=bf16" : "resident:scheme=low";
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    expected[version].resize(kInputs);
    for (int i = 0; i < kInputs; ++i) {
      REQUIRE_OK(answers(engine->get(), inputs[i], &expected[version][i]));
    }
  }
  options.strategy = strategy;
  options.budget = Budget::Fraction(0.8);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  std::atomic<int> wrong{0}, high{0}, low{0}, resized{0};
  std::atomic<bool> running{true};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::vector<float>> out;
      // On a busy machine the first promotions take a while.
      const auto unseen = [&] { return high == 0 || low == 0; };
      for (int round = 0; round < 400 || (unseen() && round < 100'000); ++round) {
        // The hot experts change.
        const int i = (round / 40 + (round + t) % 3) % kInputs;
        if (!answers(engine->get(), inputs[i], &out).ok()) {
          ++wrong;
          continue;
        }
        for (int l = 0; l < 2; ++l) {
          if (out[l] == expected[0][i][l]) {
            ++high;
          } else if (out[l] == expected[1][i][l]) {
            ++low;
          } else {
            ++wrong;
          }
        }
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; running; ++i) {
      const double share[] = {0.8, 0.95, 0.7, 0.85};
      const absl::Status status = (*engine)->SetBudget(Budget::Fraction(share[i % 4]));
      resized += status.ok();
      wrong += !status.ok();  // also while steps are open
      const EngineStats stats = (*engine)->stats();
      wrong += stats.fixed_bytes + stats.pool_bytes > stats.budget_bytes;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int t = 0; t < 3; ++t) threads[t].join();
  running = false;
  threads.back().join();
  const EngineStats stats = (*engine)->stats();
  INFO(strategy << ": high " << high << ", low " << low << ", promotions " << stats.promotions
                << ", budgets " << resized);
  CHECK(wrong == 0);
  CHECK(high > 0);
  CHECK(low > 0);
  CHECK(stats.promotions > 0);
  CHECK(StalledNs(stats) == 0);
}

TEST_CASE("a budget is taken where there is always a step open") {
  const auto source =
      std::make_shared<SyntheticSource>(SyntheticShape{2, 12, 1, 128, 96, 0, false, false, true});
  EngineOptions options;
  options.strategy = GENERATE("dynaexq:hi=bf16,lo=low,interval_ms=1e6,spare=1",
                              "graded:wait=0,hi=bf16,lo=low,n=4");
  options.threads = 1;
  options.budget = Budget::Fraction(0.9);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(128, 3);
  // wait=0: fills its cache of high versions.
  std::vector<float> out;
  for (int s = 0; s < 40; ++s) {
    out.clear();
    REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(4), 4, &out));
  }
  auto open = (*engine)->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(open.status());
  const int64_t before = (*engine)->stats().budget_bytes;
  for (const double share : {0.65, 0.9, 0.65}) {
    REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(share)));
    EngineOptions planned = options;
    planned.budget = Budget::Fraction(share);
    const auto plan = Engine::Plan(*source, planned);
    REQUIRE_OK(plan.status());
    int boundaries = 0;
    while ((*engine)->stats().budget_bytes != plan->budget_bytes) {
      REQUIRE(++boundaries < 2000);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // what moves may arrive
      auto next = (*engine)->BeginStep({Phase::kDecode, 1});
      REQUIRE_OK(next.status());
      REQUIRE_OK((*engine)->EndStep(*open));
      open = std::move(next);
    }
    const EngineStats stats = (*engine)->stats();
    CHECK(stats.fixed_bytes + stats.pool_bytes <= plan->budget_bytes);
    CHECK(stats.peak_bytes <= before);
  }
  REQUIRE_OK((*engine)->EndStep(*open));
}

}  // namespace
}  // namespace moert
