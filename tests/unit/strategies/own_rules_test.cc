// Policies that are rules: `fate` as a host writes it (examples/own_rules) decides as the built-in
// one, and rules that are out of range are refused.
#include "examples/own_rules/host_fate.h"
#include "moert/engine.h"
#include "moert/tools/replay.h"
#include "moert/tools/trace.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/tiny_trace.h"

namespace moert {
namespace {

void Register() {
  static const absl::Status status = own_rules::Register();
  REQUIRE_OK(status);
}

EngineOptions Options(const std::string& strategy, double fraction) {
  EngineOptions options;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.clock = ClockKind::kVirtual;
  options.link_gbps = 0.1;
  options.simulate = true;
  return options;
}

/// Replays recorded decode routing of the trained model.
ReplayResult Replayed(const EngineOptions& options, const std::string& text) {
  auto trace = OpenRecordedRouting(SourceDir() + "/tests/data/traces/tiny-" + text + ".safetensors",
                                   test::TinyTraceHeader());
  REQUIRE_OK(trace.status());
  auto engine = Engine::Create(MakeSizesSource((*trace)->header()), options);
  REQUIRE_OK(engine.status());
  CHECK((*engine)->exact());
  ReplayOptions replay;
  replay.max_steps = 300;
  auto result = Replay(trace->get(), engine->get(), replay);
  REQUIRE_OK(result.status());
  return *std::move(result);
}

TEST_CASE("fate as a host writes it decides as the built-in one over recorded routing") {
  Register();
  for (const char* text : {"wikitext2", "humaneval"}) {
    for (const double fraction : {0.15, 0.5}) {
      INFO(text << " " << fraction);
      const ReplayResult mine = Replayed(Options("host-fate", fraction), text);
      const ReplayResult builtin = Replayed(Options("fate", fraction), text);
      const EngineStats &a = mine.stats, &b = builtin.stats;
      CHECK(a.lookups == b.lookups);
      CHECK(a.hits_resident == b.hits_resident);
      CHECK(a.hits_prefetched == b.hits_prefetched);
      CHECK(a.late == b.late);
      CHECK(a.loads == b.loads);
      CHECK(a.evictions == b.evictions);
      CHECK(a.prefetch_issued == b.prefetch_issued);
      CHECK(a.policy_fallbacks == 0);
      CHECK(mine.decode_ms == builtin.decode_ms);
      CHECK(a.prefetch_issued > 0);
      // Another rule decides otherwise: the comparison can fail.
      EngineOptions lru = Options("host-fate", fraction);
      lru.customize_strategy = [](Strategy* strategy) {
        strategy->residency = nullptr;
        return absl::OkStatus();
      };
      CHECK(Replayed(lru, text).stats.loads != a.loads);
    }
  }
}

class Ruled final : public ResidencyPolicy {
 public:
  explicit Ruled(const ResidencyRule& rule) : rule_(rule) {}
  std::optional<ResidencyRule> rule() const override { return rule_; }
  int Victim(const VictimSnapshot& /*snapshot*/) override {
    FAIL("a policy with a rule is not asked");
    return 0;
  }

 private:
  const ResidencyRule rule_;
};

/// The messages of an engine to a residency rule.
std::string Refusal(const ResidencyRule& rule) {
  EngineOptions options = Options("on-demand", 0.5);
  options.customize_strategy = [&](Strategy* strategy) {
    strategy->residency = std::make_unique<Ruled>(rule);
    return absl::OkStatus();
  };
  return std::string(
      Engine::Create(MakeSizesSource(test::TinyTraceHeader()), options).status().message());
}

TEST_CASE("a rule that is out of range is refused by field, value and range") {
  using Catch::Contains;
  CHECK(Refusal({}).empty());
  CHECK_THAT(Refusal({.kind = ResidencyRuleKind::kAverageScore, .window = 0}),
             Contains("on-demand") && Contains("window is 0") && Contains("1 to 4096"));
  CHECK_THAT(Refusal({.kind = static_cast<ResidencyRuleKind>(3)}), Contains("kind is 3"));
  CHECK_THAT(Refusal({.shared_slots = true}), Contains("needs kind kWorth"));
  CHECK_THAT(Refusal({.capacity = {CapacityRuleKind::kShallowFirst, -2}}),
             Contains("shallow is -2"));
  CHECK_FALSE(PrefetchRule{.kind = PrefetchRuleKind::kTopScore, .wrap = true}.Validate().ok());
  CHECK_FALSE(PrefetchRule{.alpha = 2}.Validate().ok());
  CHECK_FALSE(PlacementRule{.max_low_share = 2}.Validate().ok());
  CHECK_FALSE(PlacementRule{.low_patience = 0.5}.Validate().ok());
  CHECK(PlacementRule{.max_low_share = 0.1, .low_patience = 4}.Validate().ok());
}

TEST_CASE("what a strategy promises is the weakest of its parts") {
  const auto promise = [](const char* spec) {
    const auto strategy = MakeStrategy(spec);
    REQUIRE_OK(strategy.status());
    CHECK(strategy->exact() == (strategy->promise() == Promise::kExact));
    return strategy->promise();
  };
  CHECK(promise("on-demand") == Promise::kExact);
  CHECK(promise("fate") == Promise::kExact);
  CHECK(promise("importance:alpha=0,cpu=0") == Promise::kExact);
  CHECK(promise("importance:alpha=0") == Promise::kFaithful);
  CHECK(promise("fate+importance.placement") == Promise::kFaithful);
  CHECK(promise("graded:loss=0,alpha=0,cpu=1") == Promise::kFaithful);
  CHECK(promise("importance:alpha=0.1") == Promise::kLossy);
  CHECK(promise("graded:loss=0.1,alpha=0") == Promise::kLossy);
  CHECK(promise("dynaexq") == Promise::kLossy);
  CHECK(promise("graded:wait=0") == Promise::kLossy);
}

TEST_CASE("a strategy is served by rule where every seam that it fills has one") {
  Register();
  const auto by_rule = [](const char* spec) { return MakeStrategy(spec)->misses_by_rule(); };
  for (const char* spec :
       {"on-demand", "fate", "host-fate", "importance", "graded", "fate+importance.placement"}) {
    INFO(spec);
    CHECK(by_rule(spec));
  }
  // Asked on the host: a percentile of the gate, ARC, predictions for the next step.
  for (const char* spec : {"fate:percentile=75", "fate:eviction=arc", "fate:wrap=1"}) {
    INFO(spec);
    CHECK_FALSE(by_rule(spec));
  }
}

}  // namespace
}  // namespace moert
