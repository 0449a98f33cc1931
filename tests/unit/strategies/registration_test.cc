// Strategies of a host: registered once, usable wherever a spec is.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "moert/engine.h"
#include "moert/strategy.h"
#include "moert/tools/replay.h"
#include "moert/tools/trace.h"
#include "prefetch/prefetch_rule.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

std::atomic<int64_t> victims_asked = 0;

/// The expert with the highest (or lowest) index leaves.
class ByIndex final : public ResidencyPolicy {
 public:
  explicit ByIndex(bool highest) : highest_(highest) {}
  int Victim(const VictimSnapshot& snapshot) override {
    ++victims_asked;
    return highest_ ? static_cast<int>(snapshot.candidates.size()) - 1 : 0;
  }

 private:
  const bool highest_;
};

absl::StatusOr<Strategy> BuildByIndex(const StrategyContext& context) {
  const absl::StatusOr<int> leaves = context.params.OneOf("leaves", 0, {"highest", "lowest"});
  if (!leaves.ok()) return leaves.status();
  Strategy strategy;
  strategy.residency = std::make_unique<ByIndex>(*leaves == 0);
  return strategy;
}

const StrategyInfo kByIndex = {
    "by-index", "cache by index, for tests", {{"leaves", "highest or lowest (highest)"}}};

void Register() {
  static const absl::Status status = RegisterStrategy(kByIndex, &BuildByIndex);
  REQUIRE_OK(status);
}

EngineOptions Options(const std::string& strategy) {
  EngineOptions options;
  options.strategy = strategy;
  options.budget = Budget::Fraction(0.4);
  options.clock = ClockKind::kVirtual;
  options.threads = 1;
  return options;
}

/// Runs decode steps and returns the statistics; `trace`: also recorded there.
EngineStats Drive(EngineOptions options, std::vector<float>* out) {
  const auto source =
      std::make_shared<test::SyntheticSource>(test::SyntheticShape{2, 12, 3, 64, 48, 0});
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  test::HiddenProcess process(64, 5);
  for (int s = 0; s < 40; ++s) {
    REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, out));
  }
  return (*engine)->stats();
}

TEST_CASE("a registered strategy is listed, takes its keys and runs an engine") {
  Register();
  bool listed = false;
  for (const StrategyInfo& info : ListStrategies()) {
    if (info.name != "by-index") continue;
    listed = true;
    CHECK(info.summary == kByIndex.summary);
    REQUIRE(info.keys.size() == 1);
    CHECK(info.keys[0].name == "leaves");
  }
  CHECK(listed);
  const auto message = [](const char* spec) {
    return std::string(MakeStrategy(spec).status().message());
  };
  CHECK_THAT(message("by-index:stays=1"),
             Catch::Contains("unknown key 'stays'") && Catch::Contains("leaves"));
  CHECK_THAT(message("by-index:leaves=nobody"), Catch::Contains("highest, lowest"));
  CHECK_THAT(message("by-indices"), Catch::Contains("by-index"));

  std::vector<float> expected, out;
  const EngineStats lru = Drive(Options("on-demand"), &expected);
  victims_asked = 0;
  const EngineStats highest = Drive(Options("by-index"), &out);
  CHECK(victims_asked > 0);
  CHECK(out == expected);  // a residency policy is exact
  const EngineStats lowest = Drive(Options("by-index:leaves=lowest"), &out);
  CHECK(highest.loads != lowest.loads);
  CHECK(highest.policy_fallbacks == 0);
  CHECK(highest.lookups == lru.lookups);
}

TEST_CASE("a registered strategy composes") {
  Register();
  const auto strategy = MakeStrategy("fate+by-index.residency:leaves=lowest");
  REQUIRE_OK(strategy.status());
  CHECK(WantsNextGate(strategy->prefetch.get()));
  CHECK(strategy->exact());
  victims_asked = 0;
  std::vector<float> out;
  CHECK(Drive(Options("on-demand+fate.prefetch+by-index"), &out).prefetch_issued > 0);
  CHECK(victims_asked > 0);
  CHECK_THAT(std::string(MakeStrategy("dynaexq+by-index").status().message()),
             Catch::Contains("the residency policy of 'by-index' would have no effect"));
}

TEST_CASE("a registered strategy is replayed on a trace as it ran") {
  Register();
  const test::TempDir dir;
  const std::string path = dir / "trace";
  const test::SyntheticSource source(test::SyntheticShape{2, 12, 3, 64, 48, 0});
  EngineOptions options = Options("by-index");
  {
    auto trace = CreateTrace(path, MakeTraceHeader(source, options.max_tokens_per_forward));
    REQUIRE_OK(trace.status());
    options.trace = std::move(*trace);
    std::vector<float> out;
    const EngineStats ran = Drive(options, &out);
    options.trace = nullptr;
    auto reader = OpenTrace(path);
    REQUIRE_OK(reader.status());
    options.simulate = true;
    auto engine = Engine::Create(MakeSizesSource((*reader)->header()), options);
    REQUIRE_OK(engine.status());
    victims_asked = 0;
    const auto replayed = Replay(reader->get(), engine->get(), {});
    REQUIRE_OK(replayed.status());
    CHECK(victims_asked > 0);
    CHECK(replayed->stats.loads == ran.loads);
    CHECK(replayed->stats.evictions == ran.evictions);
  }
}

TEST_CASE("names that are taken or illegal and registrations without a builder are refused") {
  Register();
  const auto refused = [](const StrategyInfo& info, absl::StatusCode code, const char* why) {
    const absl::Status status = RegisterStrategy(info, &BuildByIndex);
    CHECK(status.code() == code);
    CHECK_THAT(std::string(status.message()), Catch::Contains(why));
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  refused(kByIndex, absl::StatusCode::kAlreadyExists, "'by-index' is registered already");
  refused({"fate", "", {}}, absl::StatusCode::kAlreadyExists, "'fate'");
  for (const char* name : {"", "a+b", "a.b", "a:b", "A", "1st", "-x", "a b", "a=b", "a,b"}) {
    refused({name, "", {}}, invalid, "must begin with a-z");
  }
  refused({"keyed", "", {{"a,b", ""}}}, invalid, "key 'a,b'");
  refused({"keyed", "", {{"a", ""}, {"a", ""}}}, invalid, "declared twice");
  CHECK_THAT(std::string(RegisterStrategy({"nobody", "", {}}, nullptr).message()),
             Catch::Contains("builder must not be null"));
  // A refused strategy left nothing behind.
  for (const StrategyInfo& info : ListStrategies()) CHECK(info.name != "keyed");
}

TEST_CASE("what a builder returns is checked") {
  REQUIRE_OK(RegisterStrategy({"half-hot", "", {}}, [](const StrategyContext&) {
    Strategy strategy;
    strategy.serving = Serving::kHotSet;
    strategy.versions = {"bf16", "low"};
    return absl::StatusOr<Strategy>(std::move(strategy));
  }));
  CHECK_THAT(std::string(MakeStrategy("half-hot").status().message()),
             Catch::Contains("half-hot") && Catch::Contains("needs a precision policy"));
}

TEST_CASE("registering, listing and making strategies from many threads") {
  Register();
  std::vector<std::thread> threads;
  std::atomic<int> registered = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registered, t] {
      for (int i = 0; i < 20; ++i) {
        // Two threads race for every name: one gets it.
        const std::string name = "race-" + std::to_string(t / 2) + "-" + std::to_string(i);
        registered += RegisterStrategy({name, "", {}}, &BuildByIndex).ok();
        if (!MakeStrategy("on-demand+" + name + ".residency").ok()) std::abort();
        if (ListStrategies().size() < 9) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(registered == 40);
}

}  // namespace
}  // namespace moert
