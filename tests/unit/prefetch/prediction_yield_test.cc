// Predictions rest while they save less than they cost, and come back when they repay.
#include "prefetch/prediction_modes.h"

#include "tests/support/catch.h"

namespace moert {
namespace {

constexpr int kLayers = 24;

/// Steps of `busy` ns, `cost` more with predictions, which admit `admitted` transfers and save
/// `saved` ns; without, layers wait `missed` ns that perfect predictions would have saved.
struct Run {
  PredictionYield yield{{}, kLayers};
  double busy = 10'000, cost = 3'000;
  int admitted = 20;
  int64_t saved = 5'000, missed = 8'000, stalled = 0, wrong = 0;
  int predicted = 0;

  void Step(int64_t rows, bool allowed) {
    const bool on = allowed && !yield.resting();
    predicted += on;
    if (on) {
      for (int i = 0; i < admitted; ++i) yield.Admitted();
      yield.Saved(saved);
      yield.Saved(-wrong);
    } else {
      yield.Missed(missed);
    }
    yield.StepDone(rows, static_cast<int64_t>(busy + (on ? cost : 0)) + stalled, stalled, on);
  }
  void Steps(int n, int64_t rows = 1) {
    for (int i = 0; i < n; ++i) Step(rows, true);
  }
  /// Without predictions for another reason, as in a trial.
  void Trial(int n) {
    for (int i = 0; i < n; ++i) Step(1, false);
  }
};

TEST_CASE("predictions that save more than they cost never rest") {
  Run run;
  run.Steps(64);
  run.Trial(8);
  REQUIRE(run.yield.cost_ns() == Approx(3'000));
  run.predicted = 0;
  run.Steps(2000);
  CHECK(run.predicted == 2000);
}

TEST_CASE("predictions that save less than they cost rest, and are seldom tried again") {
  Run run;
  run.saved = 2'000;  // of many transfers: their number says nothing
  run.Steps(64);
  CHECK(run.predicted == 64);
  run.Trial(8);
  run.Steps(16);
  CHECK(run.yield.resting());
  run.Steps(1000);
  run.predicted = 0;
  run.Steps(5000);
  CHECK(run.predicted > 0);
  CHECK(run.predicted < 150);
}

TEST_CASE("where not even perfect predictions repay, hardly anything is tried") {
  Run run;
  run.admitted = 0;
  run.saved = 0;
  run.missed = 1'000;
  run.Steps(1000);
  run.predicted = 0;
  run.Steps(10'000);
  CHECK(run.predicted < 30);

  SECTION("and when they would, they are tried") {
    run.missed = 8'000;
    run.saved = 5'000;
    run.admitted = 20;
    run.Steps(1100);  // two rests at most
    run.predicted = 0;
    run.Steps(1000);
    CHECK(run.predicted == 1000);
  }
}

TEST_CASE(
    "hardly any transfer: a rest, which measures the cost; none that is small makes it last") {
  Run run;
  run.admitted = 0;
  run.saved = 10;
  run.cost = 0;
  run.Steps(16);
  CHECK(run.yield.resting());
  run.Steps(16 + 8);
  run.predicted = 0;
  run.Steps(1000);
  CHECK(run.predicted == 1000);
}

TEST_CASE("what saves nothing rests, also where a noisy machine hides its cost") {
  Run run;
  run.admitted = 0;
  run.saved = 0;
  run.cost = -1'000;
  run.Steps(64);
  run.Trial(8);
  run.predicted = 0;
  run.Steps(1000);
  CHECK(run.predicted < 100);
}

TEST_CASE("looks at what does not repay cost a hundredth of the time") {
  Run run;
  run.saved = 2'000;
  run.stalled = GENERATE(0, 10'000, 90'000);
  run.Steps(64);
  run.Trial(8);
  run.Steps(16);
  REQUIRE(run.yield.resting());
  CHECK(run.yield.doubted());
  run.predicted = 0;
  run.Steps(700);
  const double price =
      run.predicted * run.cost / (700 * (run.busy + static_cast<double>(run.stalled)));
  CHECK(price < 0.012);
  CHECK(run.predicted > 0);
  CHECK(run.yield.doubted());  // in a look, too
}

TEST_CASE("wrong ones that held the link are taken off what the right ones saved") {
  Run run;
  run.wrong = 3'000;
  run.Steps(64);
  run.Trial(8);
  run.Steps(16);
  CHECK(run.yield.resting());
}

TEST_CASE("an interrupted step is no cost") {
  Run run;
  run.Steps(64);
  run.Trial(8);
  for (int i = 0; i < 200; ++i) {
    run.Steps(15);
    run.busy *= i % 20 == 0 ? 50 : 1;
    run.Steps(1);
    run.busy = 10'000;
  }
  CHECK(run.predicted == 64 + 200 * 16);
}

TEST_CASE("steps of another size are another matter") {
  Run run;
  run.saved = 2'000;
  run.Steps(64);
  run.Trial(8);
  run.Steps(16);
  REQUIRE(run.yield.resting());
  run.Steps(1, 32);
  CHECK(!run.yield.resting());
  CHECK(run.yield.cost_ns() < 0);
}

TEST_CASE("phases that are not measured go by the number of transfers") {
  PredictionYield yield({/*look=*/2, /*longest=*/16, /*measured=*/false}, kLayers);
  int predicted = 0;
  const auto step = [&](int admitted) {
    const bool on = !yield.resting();
    predicted += on;
    for (int i = 0; on && i < admitted; ++i) yield.Admitted();
    yield.StepDone(128, on ? 10'000 : 10, 0, on);
  };
  for (int i = 0; i < 100; ++i) step(1);
  CHECK(predicted == 100);
  for (int i = 0; i < 100; ++i) step(0);
  CHECK(predicted < 130);
}

}  // namespace
}  // namespace moert
