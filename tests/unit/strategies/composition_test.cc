// Compositions: what would have no effect is refused, and exactness and graph safety follow from
// the parts.
#include <string>

#include "moert/strategy.h"
#include "support/catch.h"

namespace moert {
namespace {

std::string Refused(const char* spec) {
  const absl::StatusOr<Strategy> strategy = MakeStrategy(spec);
  INFO(spec);
  CHECK(strategy.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(strategy.status().message());
}

TEST_CASE("a policy that nothing would ever ask is refused, with the reason and what to write") {
  CHECK_THAT(Refused("dynaexq+fate.prefetch"),
             Catch::Contains("the prefetch policy of 'fate' would have no effect") &&
                 Catch::Contains("'dynaexq' keeps every expert resident, so nothing is ever "
                                 "fetched ahead of a miss") &&
                 Catch::Contains("write 'dynaexq', or 'graded:wait=0+fate.prefetch'"));
  CHECK_THAT(Refused("dynaexq+importance.prefetch"), Catch::Contains("no effect"));
  CHECK_THAT(Refused("dynaexq+fate.residency"), Catch::Contains("the residency policy of 'fate'") &&
                                                    Catch::Contains("nothing is ever evicted"));
  CHECK_THAT(Refused("dynaexq+importance.placement"), Catch::Contains("no miss to place"));
  // The precision policy brings its way of serving: what the first strategy fills is idle then.
  CHECK_THAT(Refused("fate+dynaexq.precision"), Catch::Contains("the prefetch policy of 'fate'") &&
                                                    Catch::Contains("'dynaexq' keeps"));
  CHECK_THAT(Refused("fate+dynaexq"), Catch::Contains("no effect"));
  CHECK_THAT(Refused("on-demand+importance.residency+dynaexq"),
             Catch::Contains("the residency policy of 'importance'"));
  CHECK_THAT(Refused("graded:wait=0+dynaexq"),
             Catch::Contains("the precision policy of 'dynaexq'") &&
                 Catch::Contains("'graded:wait=0' keeps the low version of every expert"));
  CHECK_THAT(Refused("graded:wait=0+dynaexq.precision"), Catch::Contains("no effect"));
  CHECK_THAT(Refused("graded:wait=0+importance.placement"),
             Catch::Contains("none is placed") && Catch::Contains("write 'graded:wait=0'"));
}

TEST_CASE("nothing can be added to a strategy that holds everything") {
  for (const char* spec :
       {"resident+fate.prefetch", "resident+fate.residency", "resident+importance.routing",
        "resident+importance.placement", "resident+dynaexq", "resident+fate",
        "resident+fate.precision:low=w2a16_g64_asym"}) {
    CHECK_THAT(Refused(spec), Catch::Contains("'resident' loads every expert at open"));
  }
}

TEST_CASE("a second strategy that would lose what it is, or brings nothing, is refused") {
  CHECK_THAT(Refused("on-demand+graded:wait=0"),
             Catch::Contains("would lose it") && Catch::Contains("write 'graded:wait=0'"));
  CHECK_THAT(Refused("on-demand+fate.prefetch+graded:wait=0"),
             Catch::Contains("put it first, as in 'graded:wait=0+on-demand'"));
  CHECK(MakeStrategy("graded:wait=0+fate.prefetch").ok());
  CHECK_THAT(Refused("fate+resident"), Catch::Contains("write 'resident'"));
  CHECK_THAT(Refused("fate+on-demand"),
             Catch::Contains("leaves every seam at its default, so '+on-demand'"));
  // Versions are the first strategy's.
  CHECK_THAT(Refused("on-demand+fate.prefetch:scheme=bf16"),
             Catch::Contains("bf16") && Catch::Contains("on-demand:scheme="));
  CHECK(MakeStrategy("on-demand:scheme=bf16+fate.prefetch:scheme=bf16").ok());
  CHECK(MakeStrategy("on-demand+fate.precision:low=w2a16_g64_asym")->versions ==
        std::vector<std::string>{"w4a16_g128", "w2a16_g64_asym"});
}

TEST_CASE("compositions that work are made") {
  for (const char* spec :
       {"on-demand+fate.prefetch", "on-demand+importance.residency+importance.routing",
        "on-demand+dynaexq", "graded:wait=0+fate.prefetch", "graded:wait=0+importance.residency",
        "graded:wait=0+importance.routing", "dynaexq+importance.routing",
        "on-demand+graded.residency:wait=0", "dynaexq+fate.precision:low=w2a16_g64_asym"}) {
    INFO(spec);
    CHECK(MakeStrategy(spec).status().message() == "");
  }
}

TEST_CASE("graph safety follows from the parts") {
  for (const char* spec : {"resident", "dynaexq", "graded:wait=0", "graded:wait=0+fate.residency",
                           "on-demand+dynaexq.precision"}) {
    INFO(spec);
    CHECK(MakeStrategy(spec)->graph_safe());
  }
  // The first two were taken for safe: they can miss, or must be asked.
  for (const char* spec :
       {"dynaexq+fate.precision:low=w2a16_g64_asym", "graded:wait=0+fate.prefetch", "on-demand",
        "fate", "importance", "dynaexq+importance.routing"}) {
    INFO(spec);
    CHECK(!MakeStrategy(spec)->graph_safe());
  }
}

TEST_CASE("exactness follows from the parts") {
  for (const char* spec : {"resident", "on-demand", "fate", "on-demand+importance.residency",
                           "on-demand+importance.prefetch", "on-demand+importance.routing:alpha=0",
                           "on-demand+graded.residency:wait=0"}) {
    INFO(spec);
    CHECK(MakeStrategy(spec)->exact());
  }
  for (const char* spec : {"importance", "importance:alpha=0", "on-demand+importance.routing",
                           "on-demand+importance.placement", "fate:low=w2a16_g64_asym", "dynaexq",
                           "graded:wait=0", "on-demand+dynaexq.precision"}) {
    INFO(spec);
    CHECK(!MakeStrategy(spec)->exact());
  }
}

TEST_CASE("a policy that declares nothing is taken for lossy where it may be") {
  struct Answers final : PlacementPolicy {
    PlacementDecision Place(const PlacementSnapshot&) override { return {}; }
  };
  struct Listens final : ResidencyPolicy {
    int Victim(const VictimSnapshot&) override { return 0; }
  };
  Strategy strategy;
  strategy.residency = std::make_unique<Listens>();
  CHECK(strategy.exact());
  strategy.placement = std::make_unique<Answers>();
  CHECK(!strategy.exact());
}

TEST_CASE("a strategy whose parts contradict each other is invalid") {
  Strategy strategy;
  strategy.spec = "own";
  strategy.serving = Serving::kHotSet;
  CHECK_THAT(std::string(strategy.Validate().message()), Catch::Contains("serves 0 versions"));
  strategy.versions = {"bf16", "w4a16_g128"};
  CHECK_THAT(std::string(strategy.Validate().message()),
             Catch::Contains("needs a precision policy"));
  strategy.serving = Serving::kLowPlusCache;
  CHECK(strategy.Validate().ok());
  strategy.preload = true;
  CHECK_THAT(std::string(strategy.Validate().message()), Catch::Contains("preload"));
}

}  // namespace
}  // namespace moert
