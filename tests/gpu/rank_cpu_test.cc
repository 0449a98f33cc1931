// Two ranks of one process whose misses the CPU shares, with one pool for both: outputs within the
// tolerance of the CPU's products, eager and captured.
#include <array>
#include <memory>
#include <vector>

#include "devices_needed.h"
#include "moert/parallel/expert_parallel.h"
#include "moert/source/pinned_source.h"
#include "rank_run.h"
#include "tests/support/relative_error.h"
#include "tests/support/slow_link.h"

namespace moert::test {
namespace {

constexpr int kRanks = 2;
constexpr double kTolerance = 5e-3;  // as gpu.served_cpu_test

TEST_CASE("two devices share their misses with one CPU") {
  const RankGroup group(kRanks);
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  const auto pinned = PinRecords(source, {});
  REQUIRE_OK(pinned.status());
  for (const int64_t rows : {1, 4, 8}) {
    CAPTURE(rows);
    Case c;
    c.shards = {Experts(0, 8, true), Experts(8, 8, false)};
    c.rows = rows;
    std::vector<std::unique_ptr<RankRows>> at;
    for (int r = 0; r < kRanks; ++r) {
      at.push_back(std::make_unique<RankRows>(r, source->model(), rows));
    }
    std::array<EngineStats, kRanks> stats;
    const auto statuses = OnDevices(Text(c), kRanks, [&](int r, auto&& note) -> absl::Status {
      note("makes its engine");
      EngineOptions options = Options(r, rows, 0.3);
      options.strategy = "on-demand:cpu=1";
      options.threads = 0;  // the ranks have one pool
      options.profile = SlowLink();
      auto parallel = ExpertParallel::Create(*pinned, options, c.shards, group.rank(r));
      if (!parallel.ok()) return parallel.status();
      note("runs steps");
      RankRows* const own = at[static_cast<size_t>(r)].get();
      absl::Status status;
      for (int s = 0; s < 5 && status.ok(); ++s) {
        status = EagerStep(parallel->get(), group.rank(r).get(), c, own);
      }
      if (status.ok()) note("captures a step and replays it");
      for (int s = 0; s < 5 && status.ok(); ++s) {
        status = ReplayedSteps(parallel->get(), group.rank(r).get(), c, own);
      }
      stats[static_cast<size_t>(r)] = (*parallel)->engine()->stats();
      return status;
    });
    for (const absl::Status& status : statuses) UNSCOPED_INFO(status.ToString());
    for (const absl::Status& status : statuses) REQUIRE_OK(status);
    const std::vector<float> expected = OneEngine(source, 0, rows, true);
    CHECK(RelativeError(at[0]->Outputs(), expected) < kTolerance);
    CHECK(at[1]->Outputs() == at[0]->Outputs());
    if (rows > 1) CHECK(stats[0].cpu_computed + stats[1].cpu_computed > 0);  // not all have slots
  }
}

}  // namespace

int DevicesNeeded() { return kRanks; }

}  // namespace moert::test
