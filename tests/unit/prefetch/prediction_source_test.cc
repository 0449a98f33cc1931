// Whether the host is asked for the next layer's input: where it costs nothing, or less than it
// spares.

#include <random>
#include <vector>

#include "prefetch/prediction_modes.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

/// Steps of 1000 ns, of which layers wait `waited` where the gate predicts and `spared` less where
/// the host does, which costs `cost` more.
struct Host {
  int64_t cost, waited, spared;
  PredictionSource source = {};
  std::mt19937_64 rng{1};
  int asked = 0;

  void Steps(int n, int64_t rows = 1) {
    std::normal_distribution<double> noise(0, 10);
    for (int i = 0; i < n; ++i) {
      int64_t stalled = waited, ns = 1000 + std::llround(noise(rng));
      if (source.asks()) {
        ++asked;
        for (int layer = 0; layer < 4; ++layer) source.Asked(cost / 4);
        stalled -= spared;
        ns += cost;
      }
      source.StepDone(rows, ns + stalled, stalled);
    }
  }
};

TEST_CASE("a host that costs nothing is always asked") {
  Host host{0, 500, 200};
  host.Steps(5000);
  CHECK(host.asked == 5000);
  CHECK(!host.source.trying());
}

TEST_CASE("one that costs more than it can spare is not asked after a look") {
  Host host{400, 200, 200};
  host.Steps(100);
  CHECK(host.asked == PredictionSource::kLook);
  host.Steps(10000);
  CHECK(host.asked < 200);  // trials
}

TEST_CASE("one that spares more than it costs is asked") {
  Host host{100, 1000, 400};
  host.Steps(PredictionSource::kLook + PredictionSource::kWeigh);
  CHECK(host.asked == PredictionSource::kLook);
  host.asked = 0;
  host.Steps(5000);
  CHECK(host.asked > 4900);
}

TEST_CASE("trials correct what the look made likely") {
  Host dear{100, 1000, 40};  // spares little
  dear.Steps(500);
  dear.asked = 0;
  dear.Steps(5000);
  CHECK(dear.asked < 200);
  Host worth{200, 700, 400};  // dear, and spares more
  worth.Steps(500);
  worth.asked = 0;
  worth.Steps(5000);
  CHECK(worth.asked > 4800);
}

TEST_CASE("steps of another size are looked at afresh") {
  Host host{400, 200, 200};
  host.Steps(100);
  REQUIRE(!host.source.asks());
  host.Steps(1, /*rows=*/8);
  CHECK(host.source.asks());
}

TEST_CASE("predictions that do not repay are first made without the host") {
  Host host{100, 1000, 400};
  CHECK(!host.source.Doubt());  // its cost is not known
  host.Steps(60);
  REQUIRE(host.source.asks());
  CHECK(host.source.Doubt());
  CHECK(!host.source.asks());
  CHECK(!host.source.Doubt());  // nothing is left to leave
}

TEST_CASE("one experiment at a time: steps around a trial differ in nothing else") {
  constexpr int kSteps = 4000, kBlock = PrefetchControl::kBlock;
  PredictionModes modes(/*layers=*/1);
  PrefetchStats stats;
  std::mt19937_64 rng(3);
  std::normal_distribution<double> noise(0, 40);
  std::vector<uint8_t> predicted, asked;
  for (int step = 0; step < kSteps; ++step) {
    const bool predicts = modes.predicting(Phase::kDecode), asks = modes.asks();
    predicted.push_back(predicts);
    asked.push_back(asks);
    int64_t stalled = predicts ? 600 : 1000;
    if (predicts && asks) {  // about as good either way, so that trials go on
      modes.Asked(100);
      stalled -= 100;
    }
    if (predicts) {
      modes.yield(Phase::kDecode)->Admitted();
      modes.yield(Phase::kDecode)->Saved(400);
    }
    const int64_t busy = 1000 + (predicts && asks ? 100 : 0) + std::llround(noise(rng));
    modes.StepDone(Phase::kDecode, 1, busy + stalled, stalled, &stats);
  }
  int trials = 0, without = 0, overlaps = 0;
  for (int step = 200; step < kSteps; ++step) {
    without += predicted[step] == 0 ? 1 : 0;
    if (asked[step] == asked[step - 1]) continue;
    ++trials;
    for (int near = step - kBlock; near < std::min(step + kBlock, kSteps); ++near) {
      overlaps += predicted[near] == 0 ? 1 : 0;
    }
  }
  CHECK(trials > 20);
  CHECK(without >= 3 * kBlock);
  CHECK(overlaps == 0);
  CHECK(stats.disabled_steps == 0);
}

}  // namespace
}  // namespace moert
