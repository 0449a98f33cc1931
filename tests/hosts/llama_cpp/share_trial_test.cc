#include "share_trial.h"

#include <chrono>
#include <cstdint>

#include "support/catch.h"

namespace moert_ggml {
namespace {

using std::chrono::microseconds;

/// Tokens that take so long in each way.
struct Machine {
  int64_t shared_us, alone_us;
  ShareTrial::Time now{};
  int of_shared = 0, of_alone = 0;

  void Run(ShareTrial* trial, int tokens) {
    for (int i = 0; i < tokens; ++i) {
      trial->BeginToken(now);
      ++(trial->shares() ? of_shared : of_alone);
      now += microseconds(trial->shares() ? shared_us : alone_us);
    }
  }
};

constexpr int kOneTrial = ShareTrial::kFirstHold + 2 * ShareTrial::kTokens;

TEST_CASE("the faster way is found from either side, and holds") {
  for (const double held : {0.25, 0.9}) {
    for (const bool shared_is_faster : {true, false}) {
      CAPTURE(held, shared_is_faster);
      ShareTrial trial(held);
      CHECK(trial.shares() == (held < 0.75));
      Machine machine{shared_is_faster ? 1000 : 1030, shared_is_faster ? 1030 : 1000};
      machine.Run(&trial, kOneTrial);
      CHECK(trial.shares() == shared_is_faster);
      machine.of_shared = machine.of_alone = 0;
      machine.Run(&trial, 20000);
      // Trials come less and less often.
      CHECK((shared_is_faster ? machine.of_alone : machine.of_shared) <=
            10 * (ShareTrial::kTokens + 1));
      CHECK((shared_is_faster ? machine.of_alone : machine.of_shared) >= 4 * ShareTrial::kTokens);
    }
  }
}

TEST_CASE("a machine that changes is followed") {
  ShareTrial trial(0.25);
  Machine machine{1000, 1500};
  machine.Run(&trial, 3000);
  CHECK(trial.shares());
  machine.shared_us = 2000;
  machine.Run(&trial, 2 * ShareTrial::kLongestHold);
  CHECK_FALSE(trial.shares());
}

TEST_CASE("pauses of the host, and batches, say nothing about a way") {
  ShareTrial trial(0.25);
  Machine machine{1000, 1500};
  for (int i = 0; i < 600; ++i) {
    machine.Run(&trial, 5);
    machine.now += microseconds(50'000);  // a prompt, or eight rows
    trial.Interrupt();
    machine.Run(&trial, 5);
    machine.now += microseconds(40'000);  // a host that stops: one in ten tokens
  }
  CHECK(machine.of_shared > 20 * machine.of_alone);
}

TEST_CASE("another budget begins anew") {
  ShareTrial trial(0.25);
  Machine machine{1500, 1000};
  machine.Run(&trial, kOneTrial);
  CHECK_FALSE(trial.shares());
  trial.Restart(0.1);
  CHECK(trial.shares());
  trial.Restart(0.8);
  CHECK_FALSE(trial.shares());
}

}  // namespace
}  // namespace moert_ggml
