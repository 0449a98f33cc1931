// The versions in which a model could be served within an accepted loss.
#include "moert/offline/versions_within.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "moert/offline/pack.h"
#include "moert/tools/version_choice.h"
#include "support/catch.h"
#include "support/measured_calibration.h"

namespace moert {
namespace {

MoeModelSpec Model() {
  MoeModelSpec model;
  model.architecture = "test";
  for (int l = 0; l < 3; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = 16;
    layer.hidden = 256;
    layer.intermediate = 256;
    layer.routing.top_k = 2;
    model.layers.push_back(layer);
  }
  return model;
}

Calibration Measured() {
  return test::MeasuredCalibration(Model(), {"w8a16_g128", "w4a16_g128", "w2a16_g64_asym"}, 0.3);
}

double LossOf(const PackVersion& version) {
  const auto source = MakeLayoutSource("test", Model(), {version});
  REQUIRE_OK(source.status());
  const auto loss = PredictVersionLoss(Measured(), **source, 0);
  REQUIRE_OK(loss.status());
  return *loss;
}

TEST_CASE("bf16, the schemes and the smallest plans within the loss, most bytes first") {
  const double w4 = LossOf(PackVersion::Uniform(*Scheme::Parse("w4a16_g128")));
  for (const double accepted : {w4 / 3, w4 * 1.5}) {
    const auto versions = VersionsWithin(Measured(), accepted);
    REQUIRE_OK(versions.status());
    CHECK(versions->front().name == "bf16");
    std::set<std::string> names;
    int64_t before = INT64_MAX;
    for (const PackVersion& v : *versions) {
      INFO(v.name);
      names.insert(v.name);
      CHECK(LossOf(v) <= accepted);
      const int64_t bytes = SizeOf(Model(), v)->bytes;
      CHECK(bytes <= before);
      before = bytes;
    }
    CHECK(names.size() == versions->size());
    CHECK(names.count("w8a16_g128") == 1);
    CHECK(names.count("w4a16_g128") == (w4 <= accepted));
    CHECK(names.count("w2a16_g64_asym") == 0);
    // The smallest is a plan that uses what may be lost.
    CHECK(versions->back().name.rfind("mixed-", 0) == 0);
    CHECK(LossOf(versions->back()) > 0.95 * accepted);
  }
}

TEST_CASE("no accepted loss leaves bf16; a large one every scheme and no plan beside it") {
  const auto exact = VersionsWithin(Measured(), 0);
  REQUIRE_OK(exact.status());
  CHECK(exact->size() == 1);
  const auto any = VersionsWithin(Measured(), 1);
  REQUIRE_OK(any.status());
  CHECK(std::any_of(any->begin(), any->end(),
                    [](const PackVersion& v) { return v.name == "w2a16_g64_asym"; }));
}

TEST_CASE("without an end-to-end loss nothing can be said") {
  Calibration c = Measured();
  c.probe_tokens = 0;
  for (LayerCalibration& layer : c.layers) layer.loss_per_square.clear();
  CHECK(absl::IsFailedPrecondition(VersionsWithin(c, 0.01).status()));
}

}  // namespace
}  // namespace moert
