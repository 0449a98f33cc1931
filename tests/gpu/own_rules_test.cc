// `fate` as a host writes it, over installed headers alone (examples/own_rules), is captured in a
// graph, with the decisions of the built-in one.
#include "own_rules/host_fate.h"
#include "served_chain.h"

namespace moert::test {
namespace {

void Register() {
  static const absl::Status status = own_rules::Register();
  REQUIRE_OK(status);
}

TEST_CASE("a host's residency rule decides in captured steps as the built-in one") {
  Register();
  for (const double fraction : {0.2, 0.5}) {
    for (const int64_t rows : {1, 3, 8}) {
      INFO(fraction << " " << rows);
      // Nothing is prefetched: what is there depends on no time.
      Chain mine("on-demand+host-fate.residency", fraction);
      Chain builtin("on-demand+fate.residency", fraction);
      REQUIRE(mine.engine()->graph_needs().capturable);
      REQUIRE(mine.engine()->exact());
      mine.Capture(rows);
      builtin.Capture(rows);
      HiddenProcess process(Shape().hidden, 7);
      int64_t wrong = 0;
      for (int s = 0; s < 60; ++s) {
        const std::vector<float> x = process.Next(rows);
        wrong += !SameBits(mine.Step(x, rows, true), builtin.Step(x, rows, true));
        // Between them eager steps go on with what the device has kept. One of more experts than
        // slots loads them in turns, as reads end: then residency depends on time.
        if (s % 7 == 6 && rows == 1) wrong += !SameBits(mine.Step(x, rows, false), builtin.Step(x, rows, false));
      }
      CHECK(wrong == 0);
      const EngineStats a = mine.Stats(), b = builtin.Stats();
      CHECK(a.loads > 0);
      CHECK(a.lookups == b.lookups);
      CHECK(a.hits_resident == b.hits_resident);
      CHECK(a.loads == b.loads);
      CHECK(a.evictions == b.evictions);
      CHECK(a.bytes_loaded == b.bytes_loaded);
    }
  }
}

TEST_CASE("a host's whole strategy is captured and prefetches, with the bits of all experts") {
  Register();
  Chain all("resident", 1);
  for (const double fraction : {0.2, 0.5}) {
    INFO(fraction);
    Chain served("host-fate", fraction);
    REQUIRE(served.engine()->graph_needs().capturable);
    CHECK(WrongReplays(&all, &served) == 0);
    const EngineStats stats = served.Stats();
    CHECK(stats.prefetch_issued > 0);
    CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads);
    CHECK(stats.peak_bytes <= stats.budget_bytes);
    CHECK(stats.policy_fallbacks == 0);
  }
}

}  // namespace
}  // namespace moert::test
