// Misses that the device answers by low versions (strategy graded with cpu=0): the host's
// decisions to the bit, every request's bound, no call of the driver that waits (driver_counter.cc
// is preloaded).
#include <random>

#include "device_array.h"
#include "moert/strategy.h"
#include "served_chain.h"
#include "tests/support/run_engine.h"

namespace moert::test {
namespace {

SyntheticShape TwoVersions() {
  SyntheticShape shape = Shape();
  shape.low_version = true;
  return shape;
}

/// graded's rule without what a host does besides: nothing is brought behind a call. Asked, so for
/// eager steps only.
class RuleAlone final : public PlacementPolicy {
 public:
  explicit RuleAlone(std::unique_ptr<PlacementPolicy> graded) : graded_(std::move(graded)) {}
  PolicyTraits traits() const override {
    return {.promise = Promise::kLossy, .max_low_share = graded_->rule()->max_low_share};
  }
  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    PlacementDecision decision = graded_->Place(snapshot);
    decision.backfill = Backfill::kNever;
    return decision;
  }

 private:
  const std::unique_ptr<PlacementPolicy> graded_;
};

/// Least recently used, nothing prefetched: eager and captured steps see the same experts.
absl::StatusOr<Strategy> BuildLowByRule(const StrategyContext& context) {
  auto graded =
      MakeStrategy("graded:lo=low,cpu=0,patience=4,alpha=" + context.params.Text("alpha", "0") +
                   ",loss=" + context.params.Text("loss", "0.1") +
                   ",standby=" + context.params.Text("standby", "1"));
  if (!graded.ok()) return graded.status();
  graded->prefetch = nullptr;
  graded->residency = nullptr;
  if (context.params.Text("asked", "0") == "1") {
    graded->placement = std::make_unique<RuleAlone>(std::move(graded->placement));
  }
  return graded;
}

void GiveSlots(Engine* engine, int64_t slots) {
  const MemoryPlan plan = engine->memory();
  REQUIRE_OK(engine->SetBudget(
      Budget::Bytes(plan.fixed_bytes() + plan.own_bytes + slots * plan.block_bytes)));
  REQUIRE(engine->memory().slots == slots);
}

/// An engine under that with so many slots.
class LowByRule : public Chain {
 public:
  LowByRule(const std::string& keys, int64_t slots, const SyntheticShape& shape = TwoVersions())
      : Chain(Registered(keys), 1, shape, kMostRows, int64_t{256} << 20) {
    GiveSlots(engine(), slots);
  }

 private:
  static std::string Registered(const std::string& keys) {
    static const absl::Status status = RegisterStrategy(
        {"low-by-rule", "", {{"loss", ""}, {"standby", ""}, {"alpha", ""}, {"asked", ""}}},
        &BuildLowByRule);
    REQUIRE_OK(status);
    return "low-by-rule:" + keys;
  }
};

void CheckBalance(const EngineStats& stats) {
  const int64_t low_in_place = stats.low_answers - stats.low_loads;
  CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads -
                             stats.fills + low_in_place);
  CHECK(stats.peak_bytes <= stats.budget_bytes);
  CHECK(stats.policy_fallbacks == 0);
}

TEST_CASE("captured steps answer low what eager ones do, and the bits are theirs") {
  const char* const alpha = GENERATE("0", "0.4");
  SyntheticShape shape = TwoVersions();
  shape.experts = GENERATE(64, 160);  // by the kernels for usual calls, and by the others
  for (const double loss : {0.02, 0.1, 0.5}) {
    for (const int64_t rows : {1, 2, 5}) {
      INFO("alpha " << alpha << ", loss " << loss << ", " << rows << " rows, " << shape.experts
                    << " experts");
      const std::string keys = "loss=" + std::to_string(loss) + ",alpha=" + alpha;
      const int64_t slots = shape.layers * (rows < 5 ? 18 : 42);
      LowByRule eager(keys + ",asked=1", slots, shape), served(keys, slots, shape);
      REQUIRE(served.engine()->graph_needs().capturable);
      served.Capture(rows);
      std::mt19937 rng(2);
      int64_t wrong = 0;
      for (int s = 0; s < 100; ++s) {
        HiddenProcess process(Shape().hidden, 100 + rng() % 40);
        const std::vector<float> x = process.Next(rows);
        eager.SetRequests(RequestsOf(s, rows));
        served.SetRequests(RequestsOf(s, rows));
        wrong += !SameBits(served.Step(x, rows, true), eager.Step(x, rows, false));
      }
      CHECK(wrong == 0);
      eager.SetRequests({});
      served.SetRequests({});
      const EngineStats a = served.Stats(), b = eager.Stats();
      CHECK(b.low_answers > 0);
      CHECK(a.low_answers == b.low_answers);
      CHECK(a.slots_low == b.slots_low);
      CHECK(a.mass_low == Approx(b.mass_low).epsilon(1e-5));
      CHECK(a.worst_low_share == Approx(b.worst_low_share).epsilon(1e-9));
      CHECK(a.worst_low_share <= loss * (1 + 1e-6));
      CHECK(a.lookups == b.lookups);
      CHECK(a.hits_resident == b.hits_resident);
      CHECK(a.loads == b.loads);
      CHECK(a.bytes_loaded == b.bytes_loaded);
      CHECK(a.evictions == b.evictions);
      CHECK(a.slots_substituted == b.slots_substituted);
      CheckBalance(a);
    }
  }
}

TEST_CASE("a few steps that answer low, for the tools that watch every access") {
  const char* const alpha = GENERATE("0", "0.4");  // without the rule in front, and with it
  Chain served(std::string("graded:lo=low,cpu=0,loss=0.3,alpha=") + alpha, 0.25, TwoVersions());
  const EngineStats stats = FewReplays(&served);
  CHECK(stats.low_answers > 0);
  CHECK(stats.worst_low_share <= 0.3 * (1 + 1e-6));
}

TEST_CASE("low versions read in host memory answer as those that stand by") {
  for (const int64_t rows : {1, 3, 8}) {
    const int64_t slots = Shape().layers * 16;
    LowByRule standing("loss=0.2", slots), served("loss=0.2,standby=0", slots);
    REQUIRE(served.engine()->graph_needs().capturable);
    standing.Capture(rows);
    served.Capture(rows);
    HiddenProcess process(Shape().hidden, 40 + static_cast<uint64_t>(rows));
    int64_t wrong = 0;
    for (int s = 0; s < 80; ++s) {
      const std::vector<float> x = process.Next(rows);
      wrong += !SameBits(served.Step(x, rows, true), standing.Step(x, rows, true));
    }
    CHECK(wrong == 0);
    const EngineStats a = served.Stats(), b = standing.Stats();
    CHECK(a.low_answers > 0);
    CHECK(a.low_answers == b.low_answers);
    CHECK(a.low_loads == a.low_answers);
    CHECK(b.low_loads == 0);
    CHECK(a.loads == b.loads + a.low_loads);
    CHECK(a.bytes_loaded > b.bytes_loaded);
    CheckBalance(a);
    CheckBalance(b);
  }
}

TEST_CASE("a routing that the host left on the device") {
  constexpr int64_t kRows = 3;
  const auto pairs = static_cast<size_t>(kRows * Shape().top_k);
  std::vector<float> given(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    given[i] = 1.0f / static_cast<float>(2 + i % static_cast<size_t>(Shape().top_k));
  }
  DeviceArray<int32_t> ids(pairs);
  const DeviceArray<float> weights(given);
  const int64_t slots = Shape().layers * 26;
  LowByRule eager("loss=0.1,asked=1", slots), served("loss=0.1", slots);
  served.Capture(kRows, ids.get(), weights.get());
  std::mt19937 rng(23);
  HiddenProcess process(Shape().hidden, 19);
  int64_t wrong = 0;
  for (int s = 0; s < 60; ++s) {
    ids.Set(DrawnExperts(kRows, &rng));
    const std::vector<float> x = process.Next(kRows);
    const std::vector<float> replayed = served.Step(x, kRows, true);
    const StepId step = eager.Begin(kRows);
    eager.Set(x);
    eager.ForwardRouted(step, kRows, ids.get(), weights.get());
    wrong += !SameBits(eager.Get(kRows), replayed);
    REQUIRE_OK(eager.engine()->EndStep(step));
  }
  CHECK(wrong == 0);
  CHECK(served.Stats().low_answers > 0);
  CHECK(served.Stats().low_answers == eager.Stats().low_answers);
}

TEST_CASE("where nothing may be lost, graded has the bits of an engine that holds all") {
  Chain all("resident", 1, TwoVersions());
  const std::pair<const char*, double> cells[] = {
      {"graded:lo=low,cpu=0,loss=0,alpha=0", 0.1},
      {"graded:lo=low,cpu=0,loss=0,alpha=0", 0.5},
      {"graded:lo=low,cpu=0,loss=0,alpha=0,transient=2", 0.5},
      {"graded:lo=low,cpu=0,loss=0", 0.25},
      {"graded:lo=low,cpu=0,loss=0,alpha=0,standby=1", 0.75}};
  for (const auto& [strategy, fraction] : cells) {
    INFO(strategy << " " << fraction);
    Chain served(strategy, fraction, TwoVersions());
    REQUIRE(served.engine()->graph_needs().capturable);
    CHECK(WrongReplays(&all, &served) == 0);
    const EngineStats stats = served.Stats();
    CHECK(stats.low_answers == 0);
    CHECK(stats.mass_substituted == 0);  // experts of no weight may be
    CheckBalance(stats);
  }
}

TEST_CASE("budgets and leases, with nothing to be lost") {
  Chain all("resident", 1, TwoVersions());
  Chain served("graded:lo=low,cpu=0,loss=0,alpha=0", 0.5, TwoVersions());
  served.Capture(3);
  std::mt19937 rng(4);
  HiddenProcess process(Shape().hidden, 13);
  const auto next = [&] { return process.Next(3); };
  // Eager steps in between leave low versions nowhere.
  CHECK(WrongWhileBudgetsChange(&all, &served, &rng, next, [](int s) { return s % 4 != 1; }) == 0);
}

TEST_CASE("the bound holds for every request, whatever happens between steps") {
  const auto [strategy, loss, least] =
      GENERATE(std::tuple("graded:lo=low,cpu=0", 0.05, 0.05),
               std::tuple("graded:lo=low,cpu=0,loss=0.02,alpha=0", 0.02, 0.05),
               std::tuple("graded:lo=low,cpu=0,standby=1,loss=0.1", 0.1, 0.6));
  INFO(strategy);
  Chain served(strategy, 0.75, TwoVersions());
  REQUIRE(served.engine()->graph_needs().capturable);
  for (const int64_t rows : {1, 8}) served.Capture(rows);
  std::mt19937 rng(6);
  HiddenProcess process(Shape().hidden, 21);
  for (int s = 0; s < 3000; ++s) {
    if (s % 50 == 49) {
      const double more = (0.95 - least) * static_cast<double>(rng() % 100) / 100;
      REQUIRE_OK(served.engine()->SetBudget(Budget::Fraction(least + more)));
    }
    const int64_t rows = s % 2 == 0 ? 1 : 8;
    served.SetRequests(RequestsOf(s, rows));
    served.Step(process.Next(rows), rows, /*replay=*/s % 31 != 7);
    if (s % 100 != 0) continue;
    const EngineStats stats = served.engine()->stats();
    CHECK(stats.worst_low_share + stats.worst_mass_share <= loss * (1 + 1e-6));
    CHECK(stats.pool_bytes <= served.engine()->memory().pool_bytes());
  }
  served.SetRequests({});
  const EngineStats stats = served.Stats();
  CHECK(stats.low_answers > 100);
  CHECK(stats.worst_low_share > 0);
  CHECK(stats.worst_low_share + stats.worst_mass_share <= loss * (1 + 1e-6));
  // Counted apart: by slot, not by account.
  CHECK(stats.mass_low + stats.mass_substituted <= loss * stats.mass * (1 + 1e-5));
  CHECK(stats.slots_low >= stats.low_answers);
}

TEST_CASE("what was answered low is brought while nothing is predicted to be missing") {
  constexpr double kLoss = 0.9;
  Chain served("graded:lo=low,cpu=0,alpha=0,patience=1,loss=0.9", 1, TwoVersions());
  GiveSlots(served.engine(), Shape().layers * 44);
  served.Capture(1);
  HiddenProcess process(Shape().hidden, 17);
  std::vector<std::vector<float>> inputs;  // of few experts: there are slots for all of them
  for (int i = 0; i < 4; ++i) inputs.push_back(process.Next(1));
  EngineStats before;
  constexpr int kSteps = 400, kLast = 40;
  for (int s = 0; s < kSteps; ++s) {
    if (s == kSteps - kLast) before = served.Stats();
    served.Step(inputs[static_cast<size_t>(s % 4)], 1, true);
  }
  const EngineStats stats = served.Stats();
  CHECK(before.low_answers > 0);
  CHECK(stats.fills > 0);
  CHECK(stats.worst_low_share <= kLoss * (1 + 1e-6));
  CheckBalance(stats);
  const auto hits = [](const EngineStats& s) {
    return s.hits_resident + s.hits_prefetched + s.late;
  };
  // The first layer has no prediction. In the others most is there.
  const int64_t lookups = int64_t{kLast} * (Shape().layers - 1) * Shape().top_k;
  CHECK(hits(stats) - hits(before) >= lookups * 80 / 100);
}

TEST_CASE("no call waits, and a step is one graph launch") {
  for (const char* strategy : {"graded:lo=low,cpu=0", "graded:lo=low,cpu=0,alpha=0,standby=1"}) {
    Chain served(strategy, 0.75, TwoVersions());
    HiddenProcess process(Shape().hidden, 3);
    for (const int64_t rows : {1, 8}) {
      served.Capture(rows);
      served.SetRequests({1, 2, 3, 4, 5, 6, 7, 8});
      served.Step(process.Next(rows), rows, true);  // takes the blocks, and the accounts
      CheckOneLaunchAStep(&served, rows);
    }
  }
}

TEST_CASE("within a loss auto answers low on the device, in steps that can be captured") {
  EngineOptions options = Options("auto:loss=0.2", 0.3);
  options.profile.link_bytes_per_s = 1e6;  // whoever waits, waits long
  const auto source = std::make_shared<SyntheticSource>(TwoVersions());
  const auto served = Engine::Create(source, options);
  REQUIRE_OK(served.status());
  CHECK((*served)->strategy() == "graded:hi=bf16,lo=low,loss=0.2");
  CHECK((*served)->graph_needs().capturable);
  options.host_budget = -1;  // records are kept as they are read
  const auto balanced = Engine::Create(source, options);
  REQUIRE_OK(balanced.status());
  CHECK((*balanced)->strategy() == "graded:hi=bf16,lo=low,loss=0.2");
  CHECK(!(*balanced)->graph_needs().capturable);
}

TEST_CASE("calls that are not of decode wait for high versions") {
  LowByRule served("loss=0.5", Shape().layers * 18);
  Chain all("resident", 1, TwoVersions());
  served.SetPhase(Phase::kPrefill);
  served.Capture(2);
  HiddenProcess process(Shape().hidden, 33);
  int64_t wrong = 0;
  for (int s = 0; s < 20; ++s) {
    const std::vector<float> x = process.Next(2);
    wrong += !SameBits(served.Step(x, 2, true), all.Step(x, 2, false));
  }
  CHECK(wrong == 0);
  CHECK(served.Stats().low_answers == 0);
}

}  // namespace
}  // namespace moert::test
