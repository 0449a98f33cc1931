// The control finds the faster mode, keeps it, and rarely tries the other.
#include <random>

#include "prefetch/prediction_modes.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

struct Run {
  PrefetchControl control;
  std::mt19937_64 rng{1};
  int prefetched = 0;

  /// Steps of `on` ns with prefetch and `off` without, each with some noise.
  void Steps(int n, double on, double off, double noise, int64_t rows = 1) {
    std::normal_distribution<double> normal;
    for (int i = 0; i < n; ++i) {
      const bool prefetching = control.on();
      prefetched += prefetching;
      control.StepDone(rows, static_cast<int64_t>((prefetching ? on : off) + noise * normal(rng)));
    }
  }
};

TEST_CASE("prefetch that pays stays on, and is rarely interrupted") {
  Run run;
  run.Steps(4000, 1000, 1200, 200);
  CHECK(!run.control.disabled());
  CHECK(run.prefetched > 3900);
}

TEST_CASE("prefetch that loses is stopped within a few hundred steps") {
  Run run;
  run.Steps(400, 1100, 1000, 50);
  CHECK(run.control.disabled());
  run.prefetched = 0;
  run.Steps(4000, 1100, 1000, 50);
  CHECK(run.control.disabled());
  CHECK(run.prefetched < 150);
}

TEST_CASE("it comes back when it begins to pay") {
  Run run;
  run.Steps(1000, 1100, 1000, 20);
  REQUIRE(run.control.disabled());
  run.Steps(6000, 1000, 1300, 20);
  CHECK(!run.control.disabled());
}

TEST_CASE("no difference changes nothing") {
  Run run;
  run.Steps(10000, 1000, 1000, 300);
  CHECK(!run.control.disabled());
  CHECK(run.prefetched > 9000);
  Run exact;
  exact.Steps(10000, 1000, 1000, 0);
  CHECK(!exact.control.disabled());
  CHECK(exact.prefetched > 9900);
}

TEST_CASE("a drift is no gain") {
  // Steps grow longer, as attention does with the context.
  PrefetchControl control;
  for (int i = 0; i < 5000; ++i) control.StepDone(1, 1000 + i);
  CHECK(!control.disabled());
  PrefetchControl falling;
  for (int i = 0; i < 5000; ++i) falling.StepDone(1, 10000 - i);
  CHECK(!falling.disabled());
}

TEST_CASE("steps of different sizes are not compared") {
  PrefetchControl control;
  for (int i = 0; i < 5000; ++i) {
    const int64_t rows = i % 7 + 1;
    // Any step without prefetch would look faster.
    control.StepDone(rows, control.on() ? 1000 : 100);
    REQUIRE(control.on());
  }
}

}  // namespace
}  // namespace moert
