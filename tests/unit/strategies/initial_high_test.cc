// Sets of experts that are high from the start: given in a spec, or by the frequencies of a
// calibration file.
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

std::shared_ptr<SyntheticSource> TwoVersions(int layers = 3, int experts = 12) {
  return std::make_shared<SyntheticSource>(
      SyntheticShape{layers, experts, 2, 128, 96, 0, false, false, true});
}

std::string CalibrationText(const MoeModelSpec& model,
                            const std::vector<std::vector<int64_t>>& selections) {
  return CalibrationToJson(test::CalibrationOf(model, selections));
}

EngineOptions Options(const std::string& strategy) {
  EngineOptions options;
  options.strategy = strategy;
  options.clock = ClockKind::kVirtual;
  options.threads = 1;
  return options;
}

std::vector<std::vector<int>> Highs(Engine* engine) {
  std::vector<std::vector<int>> sets;
  for (int l = 0; l < engine->model().num_layers(); ++l) {
    sets.emplace_back();
    const auto states = engine->ResidencyOf(l);
    REQUIRE_OK(states.status());
    for (size_t e = 0; e < states->size(); ++e) {
      if ((*states)[e] == Residency::kHigh) sets.back().push_back(static_cast<int>(e));
    }
  }
  return sets;
}

const std::vector<std::vector<int64_t>> kSelections = {
    {1, 9, 2, 8, 3, 7, 0, 0, 0, 0, 0, 0},
    {5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},  // of equals the first
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 70, 90, 80},
};
const std::vector<std::vector<int>> kHottest = {{1, 3, 5}, {0, 1, 2}, {9, 10, 11}};

TEST_CASE("the most selected experts of a calibration file are high from the start") {
  const auto source = TwoVersions();
  const TempDir dir;
  const std::string path = dir / "calibration";
  test::WriteFile(path, CalibrationText(source->model(), kSelections));
  for (const std::string keys : {"interval_ms=10000000,", ""}) {
    const std::string spec =
        "dynaexq:" + keys + "hi=bf16,lo=low,hi_fraction=0.25,calibration=" + path;
    INFO(spec);
    auto engine = Engine::Create(source, Options(spec));
    REQUIRE_OK(engine.status());
    CHECK(Highs(engine->get()) == kHottest);
    test::HiddenProcess process(128, 9);
    std::vector<float> out;
    for (int s = 0; s < 300; ++s) {
      REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
    }
    // The set stays until the first decision, which goes by what was seen.
    CHECK((Highs(engine->get()) == kHottest) == !keys.empty());
  }
  // As many as the budget holds, where the spec names no share.
  EngineOptions options = Options("dynaexq:hi=bf16,lo=low,calibration=" + path);
  options.budget = Budget::Fraction(1.0);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  const std::vector<std::vector<int>> highs = Highs(engine->get());
  CHECK(highs[0].size() > 3);
  for (const int e : kHottest[2]) {
    CHECK(std::find(highs[2].begin(), highs[2].end(), e) != highs[2].end());
  }
}

TEST_CASE("a calibration of another model, a damaged one and a contradiction are refused") {
  const auto source = TwoVersions();
  const TempDir dir;
  const std::string path = dir / "calibration";
  const auto refused = [&](const std::string& keys) {
    const auto engine =
        Engine::Create(source, Options("dynaexq:hi=bf16,lo=low,hi_fraction=0.25," + keys));
    CHECK(!engine.ok());
    return std::string(engine.status().message());
  };
  test::WriteFile(path, CalibrationText(TwoVersions(2)->model(), {kSelections[0], kSelections[1]}));
  CHECK_THAT(refused("calibration=" + path), Catch::Contains("2 MoE layers, not of 3"));
  const std::vector<int64_t> eight(8, 1);
  test::WriteFile(path, CalibrationText(TwoVersions(3, 8)->model(), {eight, eight, eight}));
  CHECK_THAT(refused("calibration=" + path), Catch::Contains("layer 0 has 8 experts there and 12"));
  std::string text = CalibrationText(source->model(), kSelections);
  test::WriteFile(path, text);
  CHECK_THAT(refused("hot=0,calibration=" + path), Catch::Contains("give one"));
  text[text.find("90")] = '8';  // the seal
  test::WriteFile(path, text);
  CHECK_THAT(refused("calibration=" + path), Catch::Contains("checksum"));
  CHECK_THAT(refused("calibration=" + path + ".no"), Catch::Contains(path));
}

}  // namespace
}  // namespace moert
