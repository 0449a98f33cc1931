// Inputs that the host offers ahead (Engine::OfferInput): what they are used for, that they change
// no output of an exact strategy, what is refused.
#include <cstring>

#include "moert/engine.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kLayers = 5;
constexpr int64_t kRows = 2;
constexpr int64_t kHidden = 64;

EngineOptions Options(const std::string& strategy, double link_gbps) {
  EngineOptions options;
  options.strategy = strategy;
  options.budget = Budget::Fraction(0.3);
  options.clock = ClockKind::kVirtual;
  options.link_gbps = link_gbps;
  options.threads = 1;
  options.max_tokens_per_forward = kRows;
  return options;
}

struct Run {
  std::vector<float> outputs;
  EngineStats stats;
};

/// Layers' inputs do not depend on outputs, so that the host can offer the truth `ahead` layers
/// early (0: it offers nothing).
Run Drive(const EngineOptions& options, int ahead, bool announce = true) {
  SyntheticShape shape;
  shape.layers = kLayers;
  shape.experts = 16;
  shape.top_k = 2;
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(shape), options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(kHidden, 3);
  Run run;
  for (int s = 0; s < 60; ++s) {
    StepInfo info;
    info.phase = s == 0 ? Phase::kPrefill : Phase::kDecode;
    info.rows = kRows;
    info.offers_inputs = ahead > 0 && announce;
    std::vector<std::vector<float>> x;
    for (int l = 0; l < kLayers; ++l) x.push_back(process.Next(kRows));
    const auto step = (*engine)->BeginStep(info);
    REQUIRE_OK(step.status());
    std::vector<float> y(kRows * kHidden);
    for (int l = 0; l < kLayers; ++l) {
      const int offered = l + ahead - 1;  // ahead 1: right in front of its own call
      if (ahead > 0 && offered > 0 && offered < kLayers) {
        REQUIRE_OK((*engine)->OfferInput(
            *step, offered, {x[offered].data(), DType::kF32, kRows, kHidden, kHidden}));
      }
      REQUIRE_OK((*engine)->Forward(*step, l, {x[l].data(), DType::kF32, kRows, kHidden, kHidden},
                                    {y.data(), DType::kF32, kRows, kHidden, kHidden}));
      run.outputs.insert(run.outputs.end(), y.begin(), y.end());
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  run.stats = (*engine)->stats();
  return run;
}

bool SameBits(const Run& a, const Run& b) {
  return a.outputs.size() == b.outputs.size() &&
         std::memcmp(a.outputs.data(), b.outputs.data(), a.outputs.size() * sizeof(float)) == 0;
}

TEST_CASE("true inputs offered a layer ahead are prefetched from, and no bit changes") {
  const EngineOptions fate = Options("fate:control=0,top=2", 0.4);
  EngineOptions all = Options("resident", 0.4);
  all.budget = Budget::Fraction(1);
  const Run resident = Drive(all, 0);
  const Run own = Drive(fate, 0);
  const Run offered = Drive(fate, 2);
  CHECK(SameBits(own, resident));
  CHECK(SameBits(offered, resident));
  CHECK(own.stats.predictions_offered == 0);
  CHECK(own.stats.predictions_next_gate > 0);
  CHECK(offered.stats.predictions_offered == 60 * (kLayers - 1));
  CHECK(offered.stats.predictions_next_gate == 0);
  // This host's adjacent inputs have nothing in common: the gate of the layer before guesses.
  const auto recall = [](const EngineStats& s) {
    return static_cast<double>(s.prefetch_recalled) / static_cast<double>(s.prefetch_predicted);
  };
  CHECK(recall(offered.stats) == 1);
  CHECK(recall(own.stats) < 0.8);
  CHECK(offered.stats.hit_ratio() > own.stats.hit_ratio());
  CHECK(offered.stats.prefetch_useful > 0);
}

TEST_CASE("two layers ahead two predictions stand at a time, each accounted for") {
  const Run offered = Drive(Options("fate:control=0,top=2", 0.4), 3);
  CHECK(offered.stats.predictions_offered == 60 * (kLayers - 2));
  CHECK(offered.stats.prefetch_recalled == offered.stats.prefetch_predicted);
  CHECK(offered.stats.prefetch_predicted > 60 * (kLayers - 2));
  CHECK(offered.stats.prefetch_issued > 0);
}

TEST_CASE("offered when the layer is about to ask, what is left of the window is what counts") {
  const Run late = Drive(Options("fate:control=0,top=2", 0.02), 1);
  CHECK(late.stats.predictions_offered == 60 * (kLayers - 1));
  CHECK(late.stats.hits_prefetched == 0);
}

TEST_CASE("without the announcement, or a policy that asks, offers change nothing") {
  const EngineOptions fate = Options("fate:control=0,top=2", 0.4);
  const Run unannounced = Drive(fate, 2, /*announce=*/false);
  CHECK(unannounced.stats.predictions_offered == 0);
  CHECK(unannounced.stats.hits_prefetched == Drive(fate, 0).stats.hits_prefetched);
  const Run lru = Drive(Options("on-demand", 0.4), 2);
  CHECK(lru.stats.predictions_offered == 0);
  CHECK(lru.stats.prefetch_issued == 0);
}

TEST_CASE("what cannot be offered is refused") {
  SyntheticShape shape;
  auto engine =
      Engine::Create(std::make_shared<SyntheticSource>(shape), Options("fate:control=0", 0.4));
  REQUIRE_OK(engine.status());
  std::vector<float> x(kRows * kHidden);
  const MatrixView rows{x.data(), DType::kF32, kRows, kHidden, kHidden};
  StepInfo info;
  info.rows = kRows;
  info.offers_inputs = true;
  const auto step = (*engine)->BeginStep(info);
  REQUIRE_OK(step.status());
  CHECK_THAT(std::string((*engine)->OfferInput(*step, 0, rows).message()),
             Catch::Contains("layers from 1"));
  CHECK_FALSE((*engine)->OfferInput(*step, 99, rows).ok());
  CHECK_FALSE((*engine)->OfferInput(*step, -1, rows).ok());
  CHECK_FALSE((*engine)->OfferInput(*step + 1, 1, rows).ok());
  CHECK_FALSE((*engine)->OfferInput(*step, 1, {x.data(), DType::kF32, 1, kHidden, kHidden}).ok());
  CHECK_FALSE(
      (*engine)->OfferInput(*step, 1, {nullptr, DType::kF32, kRows, kHidden, kHidden}).ok());
  REQUIRE_OK((*engine)->OfferInput(*step, 1, rows));
  REQUIRE_OK((*engine)->EndStep(*step));
}

}  // namespace
}  // namespace moert
