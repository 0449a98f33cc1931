// dynaexq:versions=: it begins as the plan of its calibration, comes to what hindsight would
// choose, and goes on from there when use changes; an engine keeps its budget and never waits
// meanwhile.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "moert/engine.h"
#include "moert/offline/calibration.h"
#include "moert/strategy.h"
#include "strategies/rung_choice.h"
#include "support/calibrations.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;
using test::TempDir;

const std::string kMovingPlan =
    "dynaexq:versions=w8a16_g128/w4a16_g128/w3a16_g128_asym/w2a16_g64_asym";
constexpr int kLayers = 3, kExperts = 16, kVersions = 4, kTop = kVersions - 1;

/// Its versions have the names of schemes.
struct Source final : SyntheticSource {
  static SyntheticShape Shape() {
    SyntheticShape shape{kLayers, kExperts, 2, 128, 128, 0, false, false, true};
    shape.lower_versions = kVersions - 2;
    return shape;
  }
  Source() : SyntheticSource(Shape()) {}
  absl::string_view version_name(int v) const override { return test::kSchemeErrors[v].name; }
};

double LossIn(int layer, int rung) {
  const double delta = test::kSchemeErrors[kTop - rung].delta;
  return (1.0 + layer) * delta * delta;
}

std::string Written(const TempDir& dir, const Calibration& calibration) {
  const std::string path = dir / "calibration";
  test::WriteFile(path, CalibrationToJson(calibration));
  return path;
}

/// The policy, and the versions that follow it as if every move took no time.
struct Driver {
  const TempDir dir;
  const Source source;
  std::unique_ptr<PrecisionPolicy> policy;
  std::vector<int64_t> bytes;
  std::vector<uint8_t> rungs = std::vector<uint8_t>(kLayers * kExperts, 0);
  int64_t capacity = kLayers * kExperts * 35;
  int64_t moves = 0;

  Driver() {
    auto strategy = MakeStrategy(
        kMovingPlan + ",calibration=" + Written(dir, test::CalibrationInSchemes(source.model())));
    REQUIRE_OK(strategy.status());
    policy = std::move(strategy->precision);
    for (size_t i = 0; i < rungs.size(); ++i) bytes.insert(bytes.end(), {80, 40, 30, 20});
    Decide(std::vector<int64_t>(rungs.size(), 0), PrecisionMoment::kOpen);
  }
  int64_t Taken() const {
    int64_t taken = 0;
    for (size_t i = 0; i < rungs.size(); ++i) taken += bytes[i * kVersions + kTop - rungs[i]];
    return taken;
  }
  void Decide(const std::vector<int64_t>& counts, PrecisionMoment moment) {
    PrecisionSnapshot snapshot;
    snapshot.context.model = &source.model();
    snapshot.selections = counts;
    snapshot.high = rungs;
    snapshot.moment = moment;
    snapshot.capacity_bytes = capacity;
    snapshot.bytes = bytes;
    const absl::StatusOr<PrecisionDecision> decided = policy->Decide(snapshot);
    REQUIRE_OK(decided.status());
    const auto move = [&](const std::vector<ExpertKey>& keys, int by) {
      for (const ExpertKey key : keys) {
        uint8_t& rung = rungs[static_cast<size_t>(key.layer * kExperts + key.expert)];
        REQUIRE(rung + by >= 0);
        REQUIRE(rung + by <= kTop);
        rung = static_cast<uint8_t>(rung + by);
        ++moves;
      }
    };
    move(decided->demote, -1);
    move(decided->promote, +1);
    REQUIRE(Taken() <= capacity);
  }
  double Loss(const std::vector<double>& rates, const std::vector<uint8_t>& in) const {
    double loss = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      loss += rates[i] * LossIn(static_cast<int>(i) / kExperts, in[i]);
    }
    return loss;
  }
  /// The loss of the choice that knows the rates.
  double Hindsight(const std::vector<double>& rates) const {
    std::vector<double> loss;
    std::vector<UseBand> uses;
    for (size_t i = 0; i < rates.size(); ++i) {
      for (int r = kTop; r >= 0; --r) loss.push_back(LossIn(static_cast<int>(i) / kExperts, r));
      uses.push_back({rates[i], rates[i]});
    }
    const RungChoice choice(loss, bytes, kVersions);
    return Loss(rates, choice.Choose(uses, std::vector<uint8_t>(rates.size(), 0), capacity));
  }
};

/// Selections an interval, skewed; `turn` says who is used most.
std::vector<double> Rates(size_t turn) {
  std::vector<double> rates(kLayers * kExperts);
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[(i * 7 + turn * 5) % rates.size()] = 40 * std::exp(-4.0 * static_cast<double>(i) / 48);
  }
  return rates;
}

TEST_CASE("it begins as the plan of the calibration") {
  const Driver driver;
  const std::vector<double> alike(driver.rungs.size(), 1000);
  CHECK(driver.Loss(alike, driver.rungs) == Approx(driver.Hindsight(alike)).epsilon(0.01));
  CHECK(driver.Taken() > driver.capacity - 20);
  const auto sum = [&](int layer) {
    const auto begin = driver.rungs.begin() + layer * kExperts;
    return std::accumulate(begin, begin + kExperts, 0);
  };
  CHECK(sum(2) > sum(0));  // who is more sensitive has more
}

TEST_CASE("it comes to the choice of hindsight, before and after a change of use, and stays") {
  Driver driver;
  std::mt19937_64 rng(11);
  for (const size_t turn : {0, 3}) {
    const std::vector<double> rates = Rates(turn);
    const double before = driver.Loss(rates, driver.rungs) / driver.Hindsight(rates);
    CHECK(before > 1.3);
    double after = 0;
    int64_t late = 0;
    for (int i = 0; i < 60; ++i) {
      std::vector<int64_t> counts;
      for (const double rate : rates) {
        counts.push_back(std::poisson_distribution<int64_t>(rate)(rng));
      }
      const int64_t moves = driver.moves;
      driver.Decide(counts, PrecisionMoment::kInterval);
      if (i < 40) continue;
      after += driver.Loss(rates, driver.rungs) / driver.Hindsight(rates) / 20;
      late += driver.moves - moves;
    }
    INFO("turn " << turn << ": " << before << " then " << after << ", " << late << " late moves");
    CHECK(after < 1.05);
    CHECK(late < 20);  // in 20 decisions over 48 experts
  }
}

TEST_CASE("a smaller budget takes from whom it costs least") {
  Driver driver;
  const std::vector<double> alike(driver.rungs.size(), 1000);
  driver.capacity = kLayers * kExperts * 28;
  driver.Decide({}, PrecisionMoment::kShrink);
  CHECK(driver.Taken() <= driver.capacity);
  CHECK(driver.Loss(alike, driver.rungs) < 1.05 * driver.Hindsight(alike));
}

absl::StatusOr<std::unique_ptr<Engine>> Open(const std::string& strategy, double share = 0.5) {
  EngineOptions options;
  options.strategy = strategy;
  options.clock = ClockKind::kVirtual;
  options.threads = 1;
  options.budget = Budget::Fraction(share);
  return Engine::Create(std::make_shared<Source>(), options);
}

TEST_CASE("an engine never waits, keeps its budget, and moves experts both ways") {
  const TempDir dir;
  const Source source;
  const std::string path = Written(dir, test::CalibrationInSchemes(source.model()));
  auto engine = Open(kMovingPlan + ",interval_ms=5,spare=2,calibration=" + path);
  REQUIRE_OK(engine.status());
  CHECK(!(*engine)->exact());
  test::HiddenProcess process(128, 11);
  std::vector<float> out;
  for (const double share : {0.5, 0.4, 0.7, 0.45}) {
    REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(share)));
    for (int s = 0; s < 40; ++s) {
      REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(3), 3, &out));
      const EngineStats stats = (*engine)->stats();
      REQUIRE(stats.fixed_bytes + stats.pool_bytes <= stats.budget_bytes);
      REQUIRE(StalledNs(stats) == 0);
    }
  }
  const EngineStats stats = (*engine)->stats();
  CHECK(stats.promotions > 0);
  CHECK(stats.demotions > 0);
  CHECK(stats.policy_fallbacks == 0);
  CHECK(stats.lookups == stats.hits_resident + stats.low_answers);
}

TEST_CASE("what it needs and does not have is named") {
  const TempDir dir;
  const Source source;
  const std::string file =
      "calibration=" + Written(dir, test::CalibrationInSchemes(source.model()));
  const auto refused = [](const std::string& keys) {
    const auto engine = Open(keys);
    CHECK(!engine.ok());
    return std::string(engine.status().message());
  };
  using Catch::Contains;
  CHECK_THAT(refused(kMovingPlan + ",spare=2"), Contains("needs calibration=FILE"));
  CHECK_THAT(refused("dynaexq:versions=w8a16_g128/w2a16_g64_asym," + file),
             Contains("three or four"));
  CHECK_THAT(refused("dynaexq:versions=bf16/w8a16_g128/w4a16_g128," + file),
             Contains("has no version 'bf16'"));
  CHECK_THAT(refused("dynaexq:versions=w8a16_g128/w4a16_g128/w2a16_g-1_asym," + file),
             Contains("w2a16_g-1_asym was not calibrated"));
  CHECK_THAT(refused("dynaexq:versions=w4a16_g128/w8a16_g128/w2a16_g64_asym," + file),
             Contains("most bits first"));
  CHECK_THAT(
      refused("dynaexq:versions=bf16/w8a16_g128/w4a16_g128/w3a16_g128_asym/w2a16_g64_asym," + file),
      Contains("three or four"));
  Driver driver;
  PrecisionSnapshot two;
  two.context.model = &source.model();
  two.high = driver.rungs;
  two.moment = PrecisionMoment::kOpen;
  CHECK_THAT(std::string(driver.policy->Decide(two).status().message()),
             Contains("chooses among these"));
}

TEST_CASE("the precision seam brings the versions with it") {
  const TempDir dir;
  const std::string path = Written(dir, test::CalibrationInSchemes(Source().model()));
  REQUIRE_OK(Open("dynaexq:hi=w8a16_g128,lo=w2a16_g64_asym+dynaexq.precision:versions=w8a16_g128/"
                  "w4a16_g128/w2a16_g64_asym,calibration=" +
                  path)
                 .status());
}

}  // namespace
}  // namespace moert
