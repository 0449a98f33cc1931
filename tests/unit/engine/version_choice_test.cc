// The predicted losses of versions, and the one that is taken within an accepted loss.
#include "moert/tools/version_choice.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/match.h"
#include "fmt/format.h"
#include "moert/engine.h"
#include "moert/offline/pack.h"
#include "moert/tools/auto_strategy.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

TEST_CASE("the fastest whose loss is accepted; of those as fast the one that loses least") {
  const std::vector<VersionOffer> offers = {
      {"exact", 50, 0}, {"w8", 20, 0.001}, {"w4", 10, 0.02}, {"plan", 20, 0.004}};
  const auto at = [&](double accepted) { return ChooseVersion({accepted, offers}); };
  CHECK(at(0) == 0);
  CHECK(at(0.001) == 1);
  CHECK(at(0.005) == 1);  // as fast as the plan
  CHECK(at(0.02) == 2);
  CHECK(!ChooseVersion({-1, offers}).has_value());
  CHECK(!ChooseVersion({1, {}}).has_value());
  const std::vector<VersionOffer> equal = {{"first", 5, 0}, {"second", 5, 0}};
  CHECK(ChooseVersion({0, equal}) == 0);
}

constexpr int kLayers = 3, kExperts = 16;
constexpr double kPerSquare = 0.1;

MoeModelSpec Model() {
  MoeModelSpec model;
  model.architecture = "test";
  for (int l = 0; l < kLayers; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = kExperts;
    layer.hidden = 1024;
    layer.intermediate = 1024;
    layer.routing.top_k = 2;
    model.layers.push_back(layer);
  }
  return model;
}

/// Every block of w8 and w4 changes the output by 0.01 and 0.1.
Calibration Measured() {
  Calibration c;
  c.model = Model();
  c.schemes = {*Scheme::Parse("w8a16_g128"), *Scheme::Parse("w4a16_g128")};
  c.tokens = 1000;
  c.window = 100;
  c.tokens_checksum = "0123456789abcdef";
  c.method = "rtn";
  c.probe_tokens = 100;
  c.probe_scheme = c.schemes[1];
  for (int l = 0; l < kLayers; ++l) {
    LayerCalibration& layer = c.layers.emplace_back();
    layer.selections.assign(kExperts, 250);
    layer.weight_sums.assign(kExperts, 100);
    layer.output_norm = 10;
    layer.loss_per_square = {kPerSquare, 2 * kPerSquare};
    for (int i = 0; i < kExperts * kLinearBlocks; ++i) {
      layer.delta.push_back(0.01);
      layer.delta.push_back(0.1);
    }
  }
  return c;
}

/// In bf16, w8, half of the experts in w4, all in w4.
std::unique_ptr<ExpertSource> Ladder() {
  const Scheme w8 = *Scheme::Parse("w8a16_g128"), w4 = *Scheme::Parse("w4a16_g128");
  PackVersion mixed{"mixed", {ExpertFormat::Uniform(w8), ExpertFormat::Uniform(w4)}, {}};
  mixed.assignment.assign(kLayers, std::vector<int>(kExperts, 0));
  for (auto& layer : mixed.assignment) std::fill(layer.begin() + kExperts / 2, layer.end(), 1);
  auto source = MakeLayoutSource(
      "ladder", Model(),
      {PackVersion::Uniform(Scheme{}), PackVersion::Uniform(w8), mixed, PackVersion::Uniform(w4),
       PackVersion::Uniform(*Scheme::Parse("w2a16_g64_asym"))});
  REQUIRE_OK(source.status());
  return *std::move(source);
}

double Share(double deltas_squared) { return std::expm1(4 * kPerSquare * deltas_squared); }

TEST_CASE("a version loses the sum of what its blocks lose") {
  const auto source = Ladder();
  const Calibration c = Measured();
  const auto loss = [&](int version) { return PredictVersionLoss(c, *source, version); };
  constexpr double kW8 = kLayers * kExperts * 1e-4, kW4 = 100 * kW8;
  CHECK(loss(0).value() == 0);
  CHECK(loss(1).value() == Approx(Share(kW8)));
  CHECK(loss(2).value() == Approx(Share((kW8 + kW4) / 2)));
  CHECK(loss(3).value() == Approx(Share(kW4)));
  CHECK(absl::IsNotFound(loss(4).status()));
  Calibration unmeasured = c;
  unmeasured.probe_tokens = 0;
  CHECK(absl::IsNotFound(PredictVersionLoss(unmeasured, *source, 1).status()));
  Calibration other = c;
  other.model.layers[1].num_experts = 9;
  CHECK(absl::IsInvalidArgument(PredictVersionLoss(other, *source, 1).status()));
}

struct Auto {
  test::TempDir dir;
  std::string path = dir.path() + "/calibration";
  std::unique_ptr<ExpertSource> source = Ladder();

  explicit Auto(const Calibration& c = Measured()) { std::ofstream(path) << CalibrationToJson(c); }
  StrategyChoice At(double loss, double share, double gbps = 0.001,
                    const std::string& keys = "") const {
    EngineOptions options;
    options.strategy = "auto:loss=" + fmt::format("{}", loss) + ",calibration=" + path + keys;
    options.threads = 1;
    options.max_tokens_per_forward = 4;
    options.link_gbps = gbps;
    options.budget = Budget::Fraction(share);
    const auto choice = ChooseStrategy(*source, options);
    REQUIRE_OK(choice.status());
    UNSCOPED_INFO(choice->why);
    options.strategy = choice->spec;
    options.budget = choice->budget;
    const auto plan = Engine::Plan(*source, options);
    REQUIRE_OK(plan.status());
    options.strategy = keys.empty() ? "fate" : "fate:" + keys.substr(1);
    options.budget = Budget::Fraction(share);
    CHECK(plan->budget_bytes == Engine::Plan(*source, options)->budget_bytes);
    return *choice;
  }
};

TEST_CASE("auto serves the version that is fastest within the accepted loss") {
  const Auto it;
  constexpr double kW8 = 0.00193, kMixed = 0.11, kW4 = 0.22;
  CHECK(it.At(0, 0.4).spec == "fate");
  CHECK(it.At(kW8 / 2, 0.4).spec == "graded:hi=bf16,lo=w4a16_g128,loss=0.000965,alpha=0");
  CHECK(it.At(kW8 * 1.1, 0.4).spec == "fate:scheme=w8a16_g128");
  CHECK(it.At(kMixed, 0.35).spec == "fate:scheme=mixed");
  CHECK(it.At(kMixed, 0.45).spec == "resident:scheme=mixed");
  CHECK(it.At(kW4, 0.2).spec == "fate:scheme=w4a16_g128");
  const StrategyChoice whole = it.At(kW4, 0.6);
  CHECK(whole.spec == "resident:scheme=w8a16_g128");  // nothing waits: the least loss
  CHECK(absl::StrContains(whole.why, "accepted"));
  CHECK(it.At(kW4, 1).spec == "resident");
}

TEST_CASE("the share of a budget is of the experts as they would be served exactly") {
  CHECK(Auto().At(0.11, 0.2).budget.bytes.has_value());  // compared by At
}

TEST_CASE("scheme bounds the versions from above") {
  const std::string w8 = ",scheme=w8a16_g128";
  CHECK(Auto().At(0, 0.3, 0.001, w8).spec == "fate:scheme=w8a16_g128");
  CHECK(Auto().At(0.22, 0.3, 0.001, w8).spec == "fate:scheme=w4a16_g128");
}

TEST_CASE("a calibration that has been read is not read again") {
  const Auto it;
  EngineOptions options;
  options.strategy = "auto:loss=0.11,calibration=/there/is/none";
  options.threads = 1;
  options.max_tokens_per_forward = 4;
  options.link_gbps = 0.001;
  options.budget = Budget::Fraction(0.4);
  const auto choice = ChooseStrategy(*it.source, options, Measured());
  REQUIRE_OK(choice.status());
  CHECK(choice->spec == it.At(0.11, 0.4).spec);
  CHECK_FALSE(ChooseStrategy(*it.source, options).ok());
  Calibration other = Measured();
  other.model.layers[1].num_experts = 9;
  CHECK(absl::IsInvalidArgument(ChooseStrategy(*it.source, options, other).status()));
  options.strategy = "fate";
  CHECK(ChooseStrategy(*it.source, options, other)->spec == "fate");
}

TEST_CASE("without a measured loss it stays exact and says what measures one") {
  Calibration unmeasured = Measured();
  unmeasured.probe_tokens = 0;
  for (LayerCalibration& layer : unmeasured.layers) layer.loss_per_square.clear();
  const StrategyChoice choice = Auto(unmeasured).At(1e-9, 0.4, 1000);
  CHECK(choice.spec == "fate");
  CHECK(absl::StrContains(choice.why, "--probe-tokens"));
  const Auto it;
  EngineOptions options;
  options.strategy = "auto:loss=1e-9";
  options.link_gbps = 1000;
  options.budget = Budget::Fraction(0.4);
  CHECK(absl::StrContains(ChooseStrategy(*it.source, options)->why, "moert-pack calibrate"));
}

}  // namespace
}  // namespace moert
