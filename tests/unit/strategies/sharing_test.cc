// Promises, and the key `cpu` that follows them.
#include "moert/engine.h"
#include "moert/strategy.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

Promise PromiseOf(const char* spec, std::optional<Promise> accepted = std::nullopt) {
  const auto strategy = MakeStrategy(spec, accepted);
  REQUIRE_OK(strategy.status());
  return strategy->promise();
}

TEST_CASE("a spec says what it promises") {
  CHECK(PromiseOf("on-demand") == Promise::kExact);
  CHECK(PromiseOf("fate") == Promise::kExact);
  CHECK(PromiseOf("on-demand:cpu=1") == Promise::kFaithful);
  CHECK(PromiseOf("fate:cpu=1") == Promise::kFaithful);
  CHECK(PromiseOf("importance:alpha=0") == Promise::kFaithful);
  CHECK(PromiseOf("importance:alpha=0,cpu=0") == Promise::kExact);
  CHECK(PromiseOf("importance") == Promise::kLossy);
  CHECK(PromiseOf("graded:cpu=0") == Promise::kLossy);
}

TEST_CASE("cpu=auto goes by the weakest promise that the host accepts") {
  for (const char* spec : {"on-demand", "fate", "on-demand:cpu=auto", "importance:alpha=0"}) {
    INFO(spec);
    CHECK(PromiseOf(spec, Promise::kExact) == Promise::kExact);
    CHECK(PromiseOf(spec, Promise::kFaithful) == Promise::kFaithful);
    CHECK(PromiseOf(spec, Promise::kLossy) == Promise::kFaithful);
  }
  CHECK(PromiseOf("fate:cpu=0", Promise::kLossy) == Promise::kExact);
  CHECK(PromiseOf("fate+importance.placement") == Promise::kFaithful);
  CHECK_FALSE(MakeStrategy("fate+importance.placement", Promise::kExact).ok());
}

TEST_CASE("values of cpu, and the key that it replaces") {
  const auto wrong = MakeStrategy("fate:cpu=2");
  CHECK(wrong.status().message() == "strategy fate: cpu=2: must be one of 0, 1, auto");
  for (const auto& [old, now] : {std::pair("balancer=0", "cpu=0"),
                                 {"balancer=1", "cpu=turns"},
                                 {"balancer=completion", "cpu=1"}}) {
    const auto renamed = MakeStrategy(std::string("importance:alpha=0,") + old);
    INFO(renamed.status().message());
    CHECK(renamed.status().message() ==
          std::string("strategy importance: '") + old + "' is spelled '" + now + "' now");
  }
}

TEST_CASE("names of promises") {
  for (const Promise promise : {Promise::kExact, Promise::kFaithful, Promise::kLossy}) {
    const auto parsed = ParsePromise(PromiseName(promise));
    REQUIRE_OK(parsed.status());
    CHECK(*parsed == promise);
  }
  CHECK_FALSE(ParsePromise("Exact").ok());
}

TEST_CASE("an engine refuses a strategy that promises less than the host accepts") {
  SyntheticSource source{SyntheticShape{}};
  EngineOptions options;
  options.budget = Budget::Fraction(0.5);
  const auto plan = [&](const char* spec, Promise accepted) {
    options.strategy = spec;
    options.promise = accepted;
    return Engine::Plan(source, options).status();
  };
  const absl::Status refused = plan("importance", Promise::kFaithful);
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(std::string(refused.message()).find("is lossy, and the host accepts what is faithful") !=
        std::string::npos);
  CHECK_FALSE(plan("fate:cpu=1", Promise::kExact).ok());
  CHECK(plan("fate:cpu=1", Promise::kFaithful).ok());
  CHECK(plan("importance", Promise::kLossy).ok());
  CHECK_FALSE(plan("auto:loss=0.1", Promise::kExact).ok());
  CHECK(plan("auto", Promise::kExact).ok());
}

}  // namespace
}  // namespace moert
