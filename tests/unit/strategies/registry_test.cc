#include "moert/offline/calibration.h"
#include "moert/strategy.h"
#include "prefetch/prefetch_rule.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

std::string Message(const char* spec) { return std::string(MakeStrategy(spec).status().message()); }

TEST_CASE("strategy specs parse and compose") {
  auto s = MakeStrategy("on-demand+fate.prefetch:percentile=90");
  REQUIRE_OK(s.status());
  CHECK(s->prefetch != nullptr);
  CHECK(s->residency == nullptr);
  CHECK(s->exact());
  CHECK(s->spec == "on-demand+fate.prefetch:percentile=90");

  s = MakeStrategy("on-demand+fate");
  REQUIRE_OK(s.status());
  CHECK(s->residency != nullptr);
  CHECK(s->prefetch != nullptr);

  s = MakeStrategy("fate:percentile=50,shallow=4,transient=6,wrap=1,control=0");
  REQUIRE_OK(s.status());
  CHECK(WantsNextGate(s->prefetch.get()));
  CHECK(s->residency != nullptr);
  CHECK(!s->prefetch_control);
  CHECK(s->exact());
  s = MakeStrategy("fate+importance.prefetch:control=0,predict=forward");
  REQUIRE_OK(s.status());
  CHECK(WantsResidentForward(s->prefetch.get()));  // it is importance's
  CHECK(!s->prefetch_control);

  s = MakeStrategy("resident:scheme=w4a16_g128");
  REQUIRE_OK(s.status());
  CHECK(s->preload);
  CHECK(s->versions == std::vector<std::string>{"w4a16_g128"});
}

TEST_CASE("whose misses a device may serve") {
  for (const char* spec :
       {"on-demand", "fate", "on-demand+importance.residency", "on-demand+fate.prefetch",
        "importance:cpu=0", "importance", "importance:cpu=turns",
        "on-demand+importance.placement", "on-demand+importance.routing", "fate+importance.routing",
        "graded:cpu=0", "graded:cpu=0,standby=1", "graded", "graded:standby=1"}) {
    INFO(spec);
    const auto s = MakeStrategy(spec);
    REQUIRE_OK(s.status());
    CHECK(s->misses_by_rule());
    CHECK(!s->graph_safe());  // not by itself: something may be missing
  }
  for (const char* spec :
       {"resident", "fate:eviction=arc", "fate:percentile=75", "fate:wrap=1",
        "fate:low=w2a16_g64_asym", "dynaexq", "on-demand+graded.residency:wait=0"}) {
    INFO(spec);
    const auto s = MakeStrategy(spec);
    if (s.ok()) CHECK(!s->misses_by_rule());
  }
}

TEST_CASE("illegal specs list what is legal") {
  CHECK_THAT(Message("lru"), Catch::Contains("unknown strategy 'lru'") &&
                                 Catch::Contains("on-demand") && Catch::Contains("resident"));
  CHECK_THAT(Message("importance:depth=3"),
             Catch::Contains("unknown key 'depth'") && Catch::Contains("alpha"));
  CHECK_THAT(Message("importance:n=0"), Catch::Contains("[1, 4096]"));
  CHECK_THAT(Message("importance:n=x"), Catch::Contains("n=x"));
  CHECK_THAT(Message("importance:n=1,n=2"), Catch::Contains("given twice"));
  CHECK_THAT(Message("fate:percentile=100"), Catch::Contains("percentile=100"));
  CHECK_THAT(Message("on-demand+fate.taste"),
             Catch::Contains("unknown seam 'taste'") && Catch::Contains("prefetch"));
  CHECK_THAT(Message("on-demand+fate.prefetch+fate.prefetch+fate"),
             Catch::Contains("both fill the prefetch"));
  CHECK_THAT(Message("on-demand+resident.prefetch"), Catch::Contains("leaves its prefetch seam"));
  CHECK(!MakeStrategy("").ok());
  CHECK(!MakeStrategy("+").ok());
}

TEST_CASE("a former name answers with today's spelling") {
  CHECK_THAT(Message("never-stall"), Catch::Contains("is spelled 'graded:wait=0' now"));
  CHECK_THAT(
      Message("never-stall:hi=bf16,n=8+fate.prefetch"),
      Catch::Contains("'never-stall:hi=bf16,n=8' is spelled 'graded:wait=0,hi=bf16,n=8' now"));
  CHECK_THAT(
      Message("moving-plan:calibration=c"),
      Catch::Contains("'dynaexq:versions=w8a16_g128/") && Catch::Contains(",calibration=c'"));
  CHECK_THAT(Message("moving-plan:versions=a/b/c"),
             Catch::Contains("'dynaexq:versions=a/b/c' now"));
  CHECK_THAT(Message("activation-path:width=200"),
             Catch::Contains("baseline") && Catch::Contains("'fate'"));
  CHECK_THAT(Message("on-demand+load-on-demand.residency"), Catch::Contains("baseline"));
}

TEST_CASE("keys that a setting leaves without effect are refused") {
  CHECK_THAT(Message("graded:wait=0,loss=0.1"),
             Catch::Contains("key 'loss' has no effect with wait=0"));
  CHECK_THAT(Message("graded:n=8"), Catch::Contains("key 'n' has no effect with wait=1"));
  CHECK_THAT(Message("dynaexq:versions=a/b/c,hot=0"),
             Catch::Contains("key 'hot' has no effect with versions="));
}

TEST_CASE("the default victim is unused for longest, of one call's the least wanted") {
  std::vector<VictimCandidate> c(4);
  const int64_t last_used[] = {7, 3, 7, 3};
  const int32_t tokens[] = {9, 5, 1, 2};
  for (int i = 0; i < 4; ++i) {
    c[i].last_used = last_used[i];
    c[i].tokens = tokens[i];
  }
  CHECK(LeastRecentlyUsed(c) == 3);
  c.resize(3);
  CHECK(LeastRecentlyUsed(c) == 1);
  c[1].inserted = 8;  // brought after the others' last use, not used yet
  CHECK(LeastRecentlyUsed(c) == 2);
}

TEST_CASE("uniform capacity deals every slot once and never more than a layer has experts") {
  MoeModelSpec model;
  for (const int experts : {4, 16, 16}) {
    MoeLayerSpec layer;
    layer.num_experts = experts;
    model.layers.push_back(layer);
  }
  CHECK(UniformCapacity(model, 0) == std::vector<int>{0, 0, 0});
  CHECK(UniformCapacity(model, 2) == std::vector<int>{1, 1, 0});
  CHECK(UniformCapacity(model, 20) == std::vector<int>{4, 8, 8});
  CHECK(UniformCapacity(model, 21) == std::vector<int>{4, 9, 8});
  CHECK(UniformCapacity(model, 100) == std::vector<int>{4, 16, 16});
}

TEST_CASE("fate takes its shallow boundary from a calibration file, unless told") {
  Calibration calibration;
  calibration.tokens = calibration.window = 8;
  calibration.tokens_checksum = "0123456789abcdef";
  calibration.method = "rtn";
  calibration.schemes = {*Scheme::Parse("w4a16_g128")};
  for (int l = 0; l < 6; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = 4;
    layer.hidden = layer.intermediate = 64;
    layer.routing.top_k = 2;
    calibration.model.layers.push_back(layer);
    LayerCalibration measured;
    measured.selections.assign(4, 4);
    measured.weight_sums.assign(4, 1);
    measured.cross_layer_accuracy = l == 0 ? 0 : l == 1 ? 0.5 : 0.8;
    measured.delta.assign(4 * kLinearBlocks, 0.1);
    calibration.layers.push_back(measured);
  }
  const test::TempDir dir;
  const std::string path = dir / "calibration";
  test::WriteFile(path, CalibrationToJson(calibration));
  const auto capacity = [&](const std::string& spec) {
    const auto strategy = MakeStrategy(spec);
    REQUIRE_OK(strategy.status());
    return strategy->residency->Capacity({&calibration.model, 12, {}});
  };
  // Layers 0 and 1 are filled first.
  CHECK(capacity("fate:transient=0,calibration=" + path) == std::vector<int>{4, 4, 1, 1, 1, 1});
  CHECK(capacity("fate:transient=0,shallow=1,calibration=" + path) ==
        std::vector<int>{4, 2, 2, 2, 1, 1});
  CHECK_THAT(Message(("fate:calibration=" + path + "x").c_str()), Catch::Contains(path));
}

}  // namespace
}  // namespace moert
