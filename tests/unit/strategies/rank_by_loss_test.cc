// dynaexq:rank=loss: a selection counts what the model loses by it, and the high versions go where
// that adds up to most, whatever the layer.
#include <algorithm>
#include <numeric>

#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/offline/calibration.h"
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

constexpr int kLayers = 3, kExperts = 12;
constexpr char kLow[] = "w4a16_g128";

/// Its low version has the name of a scheme.
struct Source final : SyntheticSource {
  explicit Source(int64_t intermediate = 96)
      : SyntheticSource(
            SyntheticShape{kLayers, kExperts, 2, 128, intermediate, 0, false, false, true}) {}
  absl::string_view version_name(int v) const override { return v == 0 ? "bf16" : kLow; }
};

/// Every expert was selected 1000 times, and its error in the low version is the layer's.
Calibration Calibrated(const MoeModelSpec& model, const std::vector<double>& deltas) {
  const std::vector<int64_t> alike(kExperts, 1000);
  Calibration c = test::CalibrationOf(model, {deltas.size(), alike});
  c.tokens = 6000;
  for (size_t l = 0; l < deltas.size(); ++l) {
    c.layers[l].delta.assign(kExperts * kLinearBlocks, deltas[l]);
  }
  return c;
}

struct Opened {
  const TempDir dir;
  const std::string path = dir / "calibration";

  absl::StatusOr<std::unique_ptr<Engine>> Open(const Calibration& calibration,
                                               const std::string& keys,
                                               std::optional<Budget> budget = {}) const {
    test::WriteFile(path, CalibrationToJson(calibration));
    EngineOptions options;
    options.strategy = "dynaexq:rank=loss," + keys;
    options.clock = ClockKind::kVirtual;
    options.threads = 1;
    if (budget) options.budget = *budget;
    return Engine::Create(std::make_shared<Source>(), options);
  }
  std::string Refused(const Calibration& calibration, const std::string& keys) const {
    const auto engine = Open(calibration, keys);
    CHECK(!engine.ok());
    return std::string(engine.status().message());
  }
};

/// How many experts of each layer are high.
std::vector<int> Highs(Engine* engine) {
  std::vector<int> highs;
  for (int l = 0; l < kLayers; ++l) {
    const auto states = engine->ResidencyOf(l);
    REQUIRE_OK(states.status());
    highs.push_back(static_cast<int>(std::count(states->begin(), states->end(), Residency::kHigh)));
  }
  return highs;
}

TEST_CASE("high versions go to the layers whose low ones lose most") {
  const Opened opened;
  const Source source;
  const std::string keys = "hi_fraction=0.25,calibration=" + opened.path;
  auto engine = opened.Open(Calibrated(source.model(), {0.1, 0.2, 1}), keys);
  REQUIRE_OK(engine.status());
  CHECK(Highs(engine->get()) == std::vector<int>{0, 0, 9});

  // The whole model's loss by such an error, where that was measured.
  Calibration probed = Calibrated(source.model(), {0.1, 0.2, 1});
  probed.probe_tokens = 1000;
  probed.probe_scheme = probed.schemes[0];
  const double per_square[] = {1000, 0.1, 0.1};
  for (int l = 0; l < kLayers; ++l) probed.layers[l].loss_per_square.assign(2, per_square[l]);
  engine = opened.Open(probed, keys);
  REQUIRE_OK(engine.status());
  CHECK(Highs(engine->get()) == std::vector<int>{9, 0, 0});
}

TEST_CASE("the set follows the routing over all layers, and never holds more than there is") {
  const Opened opened;
  const Source source;
  auto engine = opened.Open(Calibrated(source.model(), {1, 1, 1.2}),
                            "hi_fraction=0.25,interval_ms=1,calibration=" + opened.path);
  REQUIRE_OK(engine.status());
  const std::vector<int> before = Highs(engine->get());
  CHECK(before == std::vector<int>{0, 0, 9});
  test::HiddenProcess process(128, 9);
  std::vector<float> out;
  for (int s = 0; s < 200; ++s) {
    REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
    const std::vector<int> now = Highs(engine->get());
    REQUIRE(std::accumulate(now.begin(), now.end(), 0) <= 9);
  }
  // Two of twelve experts are used at a time: nine of one layer cannot be the most worth of all.
  CHECK(Highs(engine->get()) != before);
}

TEST_CASE("of a smaller budget the least worth of all layers leave") {
  const Opened opened;
  const Source source;
  const std::string keys = "interval_ms=10000000,calibration=" + opened.path;
  auto engine = opened.Open(Calibrated(source.model(), {0.1, 0.5, 1}), keys, Budget::Fraction(1.0));
  REQUIRE_OK(engine.status());
  const std::vector<int> before = Highs(engine->get());
  CHECK(before[2] == kExperts);
  REQUIRE(before[0] + before[1] > 0);
  REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(0.9)));
  const std::vector<int> after = Highs(engine->get());
  CHECK(after[2] == kExperts);
  CHECK(after[0] + after[1] < before[0] + before[1]);
}

TEST_CASE("a rank by loss without the losses is refused") {
  const Opened opened;
  const Source source;
  const Calibration good = Calibrated(source.model(), {1, 1, 1});
  const std::string file = "calibration=" + opened.path;
  CHECK_THAT(opened.Refused(good, "hi_fraction=0.25"), Catch::Contains("needs calibration="));
  CHECK_THAT(opened.Refused(good, "lo=w2a16_g64_asym," + file),
             Catch::Contains("w2a16_g64_asym was not calibrated, only w4a16_g128"));
  const Source wider(192);
  CHECK_THAT(opened.Refused(Calibrated(wider.model(), {1, 1, 1}), file),
             Catch::Contains("128 x 192 there and 128 x 96 in the model"));
}

}  // namespace
}  // namespace moert
