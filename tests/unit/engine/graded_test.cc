// graded: what is lost stays within what the host accepts, and spares waiting.
#include <cstring>

#include "moert/strategy.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

struct Run {
  std::vector<float> outputs;
  EngineStats stats;
  int64_t now_ns = 0;
};

Run Decode(const std::string& strategy, double share) {
  SyntheticShape shape{3, 12, 3, 64, 48, 32};
  shape.low_version = true;
  const auto source = std::make_shared<SyntheticSource>(shape);
  EngineOptions options;
  options.strategy = strategy;
  options.threads = 1;
  options.clock = ClockKind::kVirtual;
  options.budget = Budget::Fraction(share);
  options.link_gbps = 0.02;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 5);
  Run run;
  const std::vector<int64_t> requests = {11, 12};
  for (int i = 0; i < 60; ++i) {
    REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &run.outputs, requests));
  }
  run.stats = (*engine)->stats();
  run.now_ns = (*engine)->now_ns();
  CHECK(run.stats.peak_bytes <= run.stats.budget_bytes);
  CHECK(run.stats.policy_fallbacks == 0);
  return run;
}

TEST_CASE("graded keeps every request within its loss, and waits less the more it may lose") {
  const std::string spec = "graded:lo=low,standby=1,alpha=0,loss=";
  const Run none = Decode(spec + "0", 0.95);
  CHECK(none.stats.low_answers == 0);
  CHECK(none.stats.worst_low_share == 0);
  const Run resident = Decode("resident", 1);
  REQUIRE(none.outputs.size() == resident.outputs.size());
  CHECK(std::memcmp(none.outputs.data(), resident.outputs.data(),
                    none.outputs.size() * sizeof(float)) == 0);
  int64_t before = none.stats.stall_miss_ns + none.stats.stall_queue_ns;
  for (const double loss : {0.02, 0.1, 0.3}) {
    const Run run = Decode(spec + std::to_string(loss), 0.95);
    INFO("loss " << loss);
    CHECK(run.stats.low_answers > 0);
    CHECK(run.stats.slots_low >= run.stats.low_answers);
    CHECK(run.stats.worst_low_share > 0);
    CHECK(run.stats.worst_low_share <= loss * (1 + 1e-6));
    const int64_t waited = run.stats.stall_miss_ns + run.stats.stall_queue_ns;
    CHECK(waited < before);
    before = waited;
  }
}

TEST_CASE("without a CPU graded decides by its rule alone") {
  // Beside the CPU backend there is none in any case.
  for (const char* keys : {"lo=low,standby=1,loss=0.1", "lo=low,loss=0.1,alpha=0"}) {
    const Run shared = Decode(std::string("graded:") + keys, 0.95);
    const Run ruled = Decode(std::string("graded:cpu=0,") + keys, 0.95);
    CHECK(ruled.stats.low_answers > 0);
    CHECK(ruled.stats.low_answers == shared.stats.low_answers);
    CHECK(ruled.stats.fills == shared.stats.fills);
    CHECK(ruled.now_ns == shared.now_ns);
    REQUIRE(ruled.outputs.size() == shared.outputs.size());
    CHECK(std::memcmp(ruled.outputs.data(), shared.outputs.data(),
                      shared.outputs.size() * sizeof(float)) == 0);
  }
  CHECK((*MakeStrategy("graded:cpu=0,loss=0,alpha=0")).exact());
}

TEST_CASE("substitutes and low answers share one bound") {
  const Run run = Decode("graded:lo=low,loss=0.1,alpha=0.5,substituted=0.5", 0.8);
  CHECK(run.stats.slots_substituted > 0);
  CHECK(run.stats.low_answers > 0);
  CHECK(run.stats.worst_low_share + run.stats.worst_mass_share <= 0.1 * (1 + 1e-6));
}

}  // namespace
}  // namespace moert
