// auto: what it chooses, and that it says why.
#include "moert/tools/auto_strategy.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "moert/engine.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

struct Fixture {
  std::shared_ptr<SyntheticSource> source;
  EngineOptions options;
  std::vector<std::string> lines;

  explicit Fixture(double share) {
    SyntheticShape shape{3, 12, 3, 256, 192, 128};
    shape.low_version = true;
    source = std::make_shared<SyntheticSource>(shape);
    options.strategy = "auto";
    options.threads = 1;
    options.budget = Budget::Fraction(share);
    options.log = [this](LogLevel, absl::string_view line) { lines.emplace_back(line); };
  }
  std::string Chosen() {
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    const auto choice = ChooseStrategy(*source, options);
    REQUIRE_OK(choice.status());
    CHECK((*engine)->strategy() == choice->spec);
    const auto says_why = [&](const std::string& line) {
      return absl::StrContains(line, choice->spec) && absl::StrContains(line, choice->why);
    };
    CHECK(std::count_if(lines.begin(), lines.end(), says_why) == 1);
    if (options.strategy == "auto") CHECK((*engine)->exact());
    return choice->spec;
  }
};

TEST_CASE("beside a device the CPU shares misses, unless results must be exact") {
  Fixture f(0.5);
  f.options.simulate = true;
  f.options.clock = ClockKind::kVirtual;
  f.options.profile.cpu_executor = true;
  const auto choose = [&] {
    const auto choice = ChooseStrategy(*f.source, f.options);
    REQUIRE_OK(choice.status());
    return *choice;
  };
  CHECK(choose().spec == "fate:cpu=1");
  CHECK(absl::StrContains(choose().why, "faithful"));
  f.options.promise = Promise::kFaithful;
  CHECK(choose().spec == "fate:cpu=1");
  f.options.promise = Promise::kExact;
  CHECK(choose().spec == "fate");
  f.options.promise.reset();
  f.options.budget = Budget::Fraction(0.8);  // little is missing
  CHECK(choose().spec == "fate");
  f.options.promise = Promise::kFaithful;
  CHECK(choose().spec == "fate:cpu=0");
  f.options.promise.reset();
  f.options.budget = Budget::Fraction(0.5);
  f.options.strategy = "auto:scheme=low";
  CHECK(choose().spec == "fate:scheme=low,cpu=1");
}

TEST_CASE("on the CPU alone auto is exact, whatever the host accepts") {
  Fixture f(0.5);
  for (const Promise accepted : {Promise::kExact, Promise::kFaithful, Promise::kLossy}) {
    f.options.promise = accepted;
    const auto engine = Engine::Create(f.source, f.options);
    REQUIRE_OK(engine.status());
    CHECK((*engine)->promise() == Promise::kExact);
  }
}

TEST_CASE("all experts are loaded where they fit, else fate caches them") {
  CHECK(Fixture(1).Chosen() == "resident");
  CHECK(Fixture(0.5).Chosen() == "fate");
  Fixture low(0.5);
  low.options.strategy = "auto:scheme=low";
  CHECK(low.Chosen() == "fate:scheme=low");
}

TEST_CASE("an accepted loss buys low answers only where they are expected to be faster") {
  Fixture slow(0.3);
  slow.options.strategy = "auto:loss=0.2";
  slow.options.clock = ClockKind::kVirtual;
  slow.options.link_gbps = 0.001;
  CHECK(slow.Chosen() == "graded:hi=bf16,lo=low,loss=0.2");
  // Nothing waits for a link this fast, and what loses nothing is preferred.
  Fixture quick(0.8);
  quick.options.strategy = "auto:loss=0.2";
  quick.options.link_gbps = 1000;
  CHECK(quick.Chosen() == "fate");
}

TEST_CASE("errors are those of the options") {
  Fixture f(0.5);
  f.options.strategy = "auto:loss=2";
  CHECK(!ChooseStrategy(*f.source, f.options).ok());
  f.options.strategy = "auto:top=3";
  CHECK(absl::StrContains(ChooseStrategy(*f.source, f.options).status().message(), "top"));
  f.options.strategy = "on-demand";
  CHECK(ChooseStrategy(*f.source, f.options)->spec == "on-demand");
  f.options.strategy = "auto";
  f.options.budget = Budget::Bytes(100);
  CHECK(!ChooseStrategy(*f.source, f.options).ok());
}

}  // namespace
}  // namespace moert
