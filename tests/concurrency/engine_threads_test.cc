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
  const std::string strategy = GENERATE("on-demand", "activation-path", "load-on-demand");
  EngineOptions options;
  options.strategy = strategy;
  options.threads = 2;
  options.max_tokens_per_forward = 16;
  // What each input's answer is, from an engine of its own.
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

}  // namespace
}  // namespace moert
