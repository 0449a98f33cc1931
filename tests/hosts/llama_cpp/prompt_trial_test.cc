#include "prompt_trial.h"

#include <chrono>
#include <cstdint>

#include "support/catch.h"

namespace moert_ggml {
namespace {

using std::chrono::microseconds;

/// Batches that take so long a token, shared and alone. Every `pause`-th ends with a pause.
struct Machine {
  int64_t shared_us, alone_us;
  int pause = 0;
  PromptTrial::Time now{};
  int of_shared = 0, of_alone = 0, batches = 0;

  void Run(PromptTrial* trial, int64_t tokens, int count) {
    for (int i = 0; i < count; ++i) {
      trial->Begin(tokens, now);
      ++(trial->shares() ? of_shared : of_alone);
      now += tokens * microseconds(trial->shares() ? shared_us : alone_us);
      if (pause > 0 && ++batches % pause == 0) now += std::chrono::seconds(3);
    }
  }
};

constexpr int kLearning = 2 * (static_cast<int>(PromptTrial::kFirst) + 1);

TEST_CASE("the faster way is found within six batches, and asked about now and then") {
  for (const bool shared_is_faster : {true, false}) {
    for (const int pause : {0, 3}) {
      CAPTURE(shared_is_faster, pause);
      PromptTrial trial;
      Machine machine{shared_is_faster ? 100 : 130, shared_is_faster ? 130 : 100, pause};
      machine.Run(&trial, 64, kLearning);
      CHECK(machine.of_shared == kLearning / 2);
      machine.of_shared = machine.of_alone = 0;
      machine.Run(&trial, 64, 1040);
      const int slower = shared_is_faster ? machine.of_alone : machine.of_shared;
      CHECK(slower == 1040 / (PromptTrial::kHold + PromptTrial::kTrial) * PromptTrial::kTrial);
    }
  }
}

TEST_CASE("each size has its own way, and a budget starts afresh") {
  PromptTrial trial;
  Machine few{130, 100}, many{100, 130};
  few.Run(&trial, 20, kLearning);
  many.now = few.now;
  many.Run(&trial, 300, kLearning);
  trial.Begin(17, many.now);
  CHECK_FALSE(trial.shares());
  trial.Begin(500, many.now);
  CHECK(trial.shares());
  trial.Restart();
  trial.Begin(17, many.now);
  CHECK(trial.shares());
}

TEST_CASE("a machine that changes is followed") {
  PromptTrial trial;
  Machine machine{100, 130};
  machine.Run(&trial, 64, 100);
  CHECK(trial.shares());
  machine.shared_us = 200;
  machine.Run(&trial, 64, 4 * (PromptTrial::kHold + PromptTrial::kTrial) + 8);
  machine.of_shared = 0;
  machine.Run(&trial, 64, PromptTrial::kHold);
  CHECK(machine.of_shared <= PromptTrial::kTrial);
}

}  // namespace
}  // namespace moert_ggml
