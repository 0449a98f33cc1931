// DynaExq's policy alone, over counts that a test makes up: who is high after which decisions.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "fmt/format.h"
#include "moert/strategy.h"
#include "strategies/hotness.h"
#include "support/catch.h"

namespace moert {
namespace {

constexpr int kExperts = 32, kHigh = 8;
constexpr char kNoHysteresis[] = "margin=0,noise=0,memory=1";

MoeModelSpec Model(int layers) {
  MoeModelSpec model;
  MoeLayerSpec layer;
  layer.num_experts = kExperts;
  layer.routing.top_k = 4;
  model.layers.assign(layers, layer);
  return model;
}

/// A policy and the high set that follows it, as if every move took no time.
struct Driver {
  const MoeModelSpec model;
  std::unique_ptr<PrecisionPolicy> policy;
  std::vector<uint8_t> high;
  std::vector<int32_t> capacity;
  int64_t moves = 0;

  explicit Driver(const std::string& keys, int layers = 1, int first = kHigh)
      : model(Model(layers)), capacity(layers, kHigh) {
    auto strategy = MakeStrategy(keys.empty() ? "dynaexq" : "dynaexq:" + keys);
    REQUIRE_OK(strategy.status());
    policy = std::move(strategy->precision);
    for (int l = 0; l < layers; ++l) {
      for (int e = 0; e < kExperts; ++e) high.push_back(e < first);
    }
  }
  PrecisionDecision Decide(const std::vector<int64_t>& counts) {
    PrecisionSnapshot snapshot;
    snapshot.context.model = &model;
    snapshot.selections = counts;
    snapshot.high = high;
    snapshot.high_capacity = capacity;
    const absl::StatusOr<PrecisionDecision> decided = policy->Decide(snapshot);
    REQUIRE_OK(decided.status());
    const PrecisionDecision& decision = *decided;
    for (const ExpertKey key : decision.demote) {
      REQUIRE(high[key.layer * kExperts + key.expert] == 1);
      high[key.layer * kExperts + key.expert] = 0;
    }
    for (const ExpertKey key : decision.promote) {
      REQUIRE(high[key.layer * kExperts + key.expert] == 0);
      high[key.layer * kExperts + key.expert] = 1;
    }
    for (int l = 0; l < model.num_layers(); ++l) {
      const auto begin = high.begin() + l * kExperts;
      REQUIRE(std::count(begin, begin + kExperts, 1) <= capacity[l]);
    }
    moves += static_cast<int64_t>(decision.promote.size() + decision.demote.size());
    return decision;
  }
  std::vector<int> Members(int layer = 0) const {
    std::vector<int> members;
    for (int e = 0; e < kExperts; ++e) {
      if (high[layer * kExperts + e]) members.push_back(e);
    }
    return members;
  }
};

/// Selections of independent experts at given rates.
class Stream {
 public:
  Stream(std::vector<double> rates, uint64_t seed) : rates_(std::move(rates)), rng_(seed) {}
  std::vector<int64_t> Next() {
    std::vector<int64_t> counts;
    for (const double rate : rates_) {
      counts.push_back(std::poisson_distribution<int64_t>(rate)(rng_));
    }
    return counts;
  }

 private:
  const std::vector<double> rates_;
  std::mt19937_64 rng_;
};

/// Rates that fall off as routing's do; `turn` says who comes first.
std::vector<double> Rates(double mean, int turn) {
  std::vector<double> rates(kExperts);
  double sum = 0;
  for (int e = 0; e < kExperts; ++e) {
    sum += rates[(e * 5 + turn) % kExperts] = std::exp(-3.0 * e / kExperts);
  }
  for (double& rate : rates) rate *= mean * kExperts / sum;
  return rates;
}

/// Share of what the best fixed set of kHigh experts gets.
double Covered(const Driver& driver, const std::vector<double>& rates) {
  std::vector<double> sorted = rates;
  std::sort(sorted.rbegin(), sorted.rend());
  double got = 0;
  for (const int e : driver.Members()) got += rates[e];
  return got / std::accumulate(sorted.begin(), sorted.begin() + kHigh, 0.0);
}

TEST_CASE("a budget that shrinks demotes by hotness, not by the last interval") {
  Driver driver("", 2, 0);
  PrecisionSnapshot snapshot;
  snapshot.context.model = &driver.model;
  snapshot.moment = PrecisionMoment::kShrink;
  // Nothing seen: the caller goes by its counts.
  CHECK(driver.policy->Decide(snapshot)->worth.empty());
  std::vector<int64_t> counts(2 * kExperts, 10);
  counts[3] = 100;
  for (int i = 0; i < 10; ++i) driver.Decide(counts);
  std::swap(counts[3], counts[kExperts + 4]);  // one odd interval
  driver.Decide(counts);
  const std::vector<double> worth = driver.policy->Decide(snapshot)->worth;
  REQUIRE(worth.size() == counts.size());
  CHECK(worth[3] > worth[kExperts + 4]);
  CHECK(worth[kExperts + 4] > worth[0]);
}

TEST_CASE("without hysteresis the high set is the hottest of each layer") {
  Driver driver(kNoHysteresis, 2, 0);
  std::vector<int64_t> counts(2 * kExperts, 1);
  for (int e = 10; e < 10 + kHigh; ++e) counts[e] = 20 + e;
  for (int e = 0; e < kHigh; ++e) counts[kExperts + 3 * e] = 50;
  const PrecisionDecision first = driver.Decide(counts);
  CHECK(first.demote.empty());
  // The largest gains first, over all layers.
  CHECK(first.promote.front().layer == 1);
  CHECK(first.promote.back() == ExpertKey{0, 10});
  CHECK(driver.Members(0) == std::vector<int>{10, 11, 12, 13, 14, 15, 16, 17});
  CHECK(driver.Members(1) == std::vector<int>{0, 3, 6, 9, 12, 15, 18, 21});
  CHECK(driver.Decide(counts).promote.empty());
  // The exponential mean: one interval of 60 is 0.15 * 60 = 9 beside 0.85 * 30 for expert 10.
  counts[30] = 60;
  CHECK(driver.Decide(counts).promote.empty());
  for (int i = 0; i < 20; ++i) driver.Decide(counts);
  CHECK(driver.Members(0) == std::vector<int>{11, 12, 13, 14, 15, 16, 17, 30});
  CHECK(driver.moves == 2 * kHigh + 2);
}

TEST_CASE("hysteresis: many times fewer moves on a noisy trace, and as much covered") {
  // 20 and 200 selections an interval: five tokens and fifty.
  for (const double mean : {0.625, 6.25}) {
    double covered[2] = {};
    int64_t moves[2] = {};
    for (int with = 0; with < 2; ++with) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const std::vector<double> rates = Rates(mean, 7);
        Driver driver(with ? "" : kNoHysteresis);
        Stream stream(rates, seed);
        for (int i = 0; i < 100; ++i) driver.Decide(stream.Next());
        driver.moves = 0;
        for (int i = 0; i < 400; ++i) {
          driver.Decide(stream.Next());
          covered[with] += Covered(driver, rates) / 1600;
        }
        moves[with] += driver.moves;
      }
    }
    INFO(mean << ": " << moves[0] << " and " << moves[1] << " moves, covered " << covered[0]
              << " and " << covered[1]);
    CHECK(moves[0] > 400);
    CHECK(moves[1] * 8 < moves[0]);
    CHECK(covered[1] > covered[0] - 0.005);
  }
}

TEST_CASE("a change of the workload is followed within the intervals that beta implies") {
  // 0.85^18 is a twentieth: what came before says next to nothing any more.
  constexpr int kForgotten = 18;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Driver driver("");
    Stream before(Rates(6.25, 0), seed);
    for (int i = 0; i < 200; ++i) driver.Decide(before.Next());
    CHECK(Covered(driver, Rates(6.25, 0)) > 0.95);
    const std::vector<double> rates = Rates(6.25, 80);
    Stream after(rates, seed + 100);
    CHECK(Covered(driver, rates) < 0.7);
    int intervals = 0;
    while (Covered(driver, rates) < 0.95 && intervals < 200) {
      driver.Decide(after.Next());
      ++intervals;
    }
    CHECK(intervals <= kForgotten);
  }
}

TEST_CASE("margin, chance and rank slack keep a newcomer out") {
  // Members 0 to 7 at 100 and more, the last at 100; expert 20 is hotter than that one.
  const auto enters = [](const std::string& keys, int64_t hotter, int rank = kHigh - 1) {
    Driver driver(keys);
    std::vector<int64_t> counts(kExperts, 10);
    for (int e = 0; e < kHigh; ++e) counts[e] = e < rank ? 400 : 100;
    counts[20] = 100 + hotter;
    driver.Decide(counts);
    return driver.high[20] == 1;
  };
  CHECK(enters("margin=0,noise=0", 1));
  CHECK(!enters("margin=0,noise=0", 0));
  // The mean over the layer is (7 * 400 + 100 + 23 * 10 + 100 + hotter) / 32, about 102.
  CHECK(!enters("margin=0.2,noise=0", 20));
  CHECK(enters("margin=0.2,noise=0", 22));
  // After one interval the variance is the count's own: sqrt(200) is 14.
  CHECK(!enters("margin=0,noise=2", 27));
  CHECK(enters("margin=0,noise=2", 31));
  CHECK(!enters("margin=0,noise=0,slack=1", 50));
  CHECK(enters("margin=0,noise=0,slack=1", 50, kHigh - 2));
  CHECK(!enters("margin=0,noise=0,slack=2", 50, kHigh - 2));
}

/// The rule for one layer, word by word: everybody ranked, newcomers from the hottest down.
PrecisionDecision ByTheRule(const std::vector<int64_t>& h, std::vector<uint8_t> high, int capacity,
                            double margin, double noise, int slack) {
  std::vector<int> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return h[a] > h[b]; });
  std::vector<int> members;
  for (const int e : order) {
    if (high[e]) members.push_back(e);
  }
  const double mean = std::accumulate(h.begin(), h.end(), 0.0) / kExperts;
  PrecisionDecision decision;
  for (; static_cast<int>(members.size()) > capacity; members.pop_back()) {
    decision.demote.push_back({0, members.back()});
  }
  int free = capacity - static_cast<int>(members.size());
  for (int rank = 0; rank < kExperts; ++rank) {
    const int e = order[rank];
    if (high[e]) continue;
    if (h[e] == 0) break;
    if (free-- <= 0) {
      if (rank >= capacity - slack || members.empty()) break;
      const auto weakest = static_cast<double>(h[members.back()]);
      const double newcomer = static_cast<double>(h[e]);
      if (newcomer <= weakest + (margin * mean + noise * std::sqrt(newcomer + weakest))) break;
      decision.demote.push_back({0, members.back()});
      members.pop_back();
    }
    decision.promote.push_back({0, e});
  }
  return decision;
}

TEST_CASE("decisions are what ranking everybody would say") {
  std::mt19937_64 rng(5);
  const auto draw = [&](int n) { return static_cast<int>(rng() % n); };
  const auto sorted = [](std::vector<ExpertKey> keys) {
    std::sort(keys.begin(), keys.end(),
              [](ExpertKey a, ExpertKey b) { return a.expert < b.expert; });
    return keys;
  };
  const double margin = GENERATE(0.0, 0.2);
  const double noise = GENERATE(0.0, 0.5);
  const int slack = GENERATE(0, 3);
  int moved = 0;
  for (int trial = 0; trial < 500; ++trial) {
    // beta 0: hotness is the count. Small ones tie often.
    Driver driver(fmt::format("beta=0,memory=1,margin={},noise={},slack={}", margin, noise, slack),
                  1, 0);
    std::vector<int64_t> counts(kExperts);
    const int most = trial % 2 == 0 ? 5 : 1000;
    for (int64_t& count : counts) count = draw(most);
    const int share = 1 + draw(9);
    for (uint8_t& high : driver.high) high = draw(10) < share;
    driver.capacity[0] = draw(kExperts + 1);
    const PrecisionDecision expected =
        ByTheRule(counts, driver.high, driver.capacity[0], margin, noise, slack);
    const PrecisionDecision decision = driver.Decide(counts);
    REQUIRE(sorted(decision.promote) == sorted(expected.promote));
    REQUIRE(sorted(decision.demote) == sorted(expected.demote));
    moved += !expected.promote.empty() && !expected.demote.empty();
  }
  CHECK(moved > 50);
}

TEST_CASE("free places are filled whatever the hysteresis says") {
  Driver driver("margin=5,noise=5,slack=8", 1, 2);
  std::vector<int64_t> counts(kExperts, 0);
  for (int e = 20; e < 24; ++e) counts[e] = e;
  const PrecisionDecision decision = driver.Decide(counts);
  // Nobody is promoted who was never selected.
  CHECK(decision.promote == std::vector<ExpertKey>{{0, 23}, {0, 22}, {0, 21}, {0, 20}});
  CHECK(decision.demote.empty());
}

TEST_CASE("a layer with too many high experts gives the coldest back") {
  Driver driver("", 1, 0);
  std::vector<int64_t> counts(kExperts, 5);
  for (int e = 0; e < kHigh + 2; ++e) {
    driver.high[e] = 1;
    counts[e] = 100 - e;
  }
  const PrecisionDecision decision = driver.Decide(counts);
  CHECK(decision.promote.empty());
  CHECK(decision.demote == std::vector<ExpertKey>{{0, kHigh + 1}, {0, kHigh}});
}

TEST_CASE("hotness says selections an interval from the first on, and how they scatter") {
  Hotness first(0.85, 8);
  first.Add(std::vector<int64_t>{7, 0, 100});
  CHECK(first.values()[0] == Approx(7));
  CHECK(first.values()[1] == 0);
  CHECK(first.values()[2] == Approx(100));
  CHECK(first.Scatter(100) == Approx(10));
  // The recent mean's scatter is what the formula says, at the start and in the long run.
  for (const int intervals : {3, 60}) {
    double sum = 0, squares = 0, scatter = 0;
    constexpr int kTrials = 4000;
    for (int t = 0; t < kTrials; ++t) {
      Hotness hotness(0.85, 1);
      Stream stream({10}, t);
      for (int i = 0; i < intervals; ++i) hotness.Add(stream.Next());
      sum += hotness.values()[0];
      squares += hotness.values()[0] * hotness.values()[0];
      scatter = hotness.Scatter(10);
    }
    const double mean = sum / kTrials;
    CHECK(mean == Approx(10).epsilon(0.02));
    CHECK(std::sqrt(squares / kTrials - mean * mean) == Approx(scatter).epsilon(0.06));
  }
}

TEST_CASE("a prior counts until what is seen contradicts it") {
  Hotness hotness(0.85, 8, {1, 3});
  CHECK(hotness.values()[1] == 3 * hotness.values()[0]);
  hotness.Add(std::vector<int64_t>{0, 0});  // says nothing, not even how long an interval is
  hotness.Add(std::vector<int64_t>{4, 4});
  CHECK(hotness.values()[1] > 1.5 * hotness.values()[0]);
  hotness.Add(std::vector<int64_t>{4000, 4000});
  CHECK(hotness.values()[0] == hotness.values()[1]);
}

TEST_CASE("a long memory steadies a rate that stays, and lets go of one that changed") {
  Hotness with(0.85, 8), without(0.85, 1);
  Stream before({10}, 1), after({30}, 2);
  double scatter_with = 0, scatter_without = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<int64_t> counts = before.Next();
    with.Add(counts);
    without.Add(counts);
    if (i < 100) continue;
    scatter_with += std::pow(with.values()[0] - 10, 2);
    scatter_without += std::pow(without.values()[0] - 10, 2);
  }
  CHECK(scatter_with < 0.6 * scatter_without);
  for (int i = 0; i < 18; ++i) {
    const std::vector<int64_t> counts = after.Next();
    with.Add(counts);
    without.Add(counts);
  }
  CHECK(with.values()[0] == without.values()[0]);
}

}  // namespace
}  // namespace moert
