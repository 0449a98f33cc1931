// How ranks on devices exchange rows: each its own, sums that travel as bf16, outputs of any dtype.
// Each of its 38 cases prints a line with its seconds; one that is not done after 40 s ends the
// program and says where the ranks are.
#include <memory>
#include <vector>

#include "moert/parallel/expert_parallel.h"
#include "peer_access.h"
#include "rank_run.h"

namespace moert::test {
namespace {

// Outputs in bf16 of sums that differ by a rounding of fp32 may differ by one of bf16.
constexpr double kOfBf16 = 1.0 / 128;

Case TwoRanks(int64_t rows) {
  Case c;
  c.shards = {Experts(0, 6, false), Experts(6, 10, true)};
  c.rows = rows;
  return c;
}

TEST_CASE("two devices: own tokens, captured and offloaded, floats and bf16") {
  if (Skipped(2)) return;
  const RankGroup group(2);
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  for (const int64_t rows : {2, 10, 1026}) {
    Case c = TwoRanks(rows);
    c.placement = TokenPlacement::kPerRank;
    CheckCase(group, source, c, kBound);
    c.graph = true;
    CheckCase(group, source, c, kBound);
    c.half = true;
    CheckCase(group, source, c, kOfBf16);
    c.graph = false;
    c.half = false;
    c.fraction = 0.5;
    CheckCase(group, source, c, kBound);
    Case channels = c;
    channels.fraction = 1;
    channels.shards = {Channels(0, 128), Channels(128, 128)};
    CheckCase(group, source, channels, rows < 64 ? kBound : kOfHalves);
  }
}

TEST_CASE("two devices: parts as bf16, own tokens and replicated ones") {
  if (Skipped(2)) return;
  const RankGroup group(2);
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  for (const int64_t rows : {2, 11, 1024, 1025}) {
    for (const bool half : {false, true}) {
      Case c = TwoRanks(rows);
      c.half = half;
      c.exchange.bf16_rows = 1;
      c.graph = true;
      CheckCase(group, source, c, kOfBf16);
      c.placement = TokenPlacement::kPerRank;
      if (rows % 2 == 0) CheckCase(group, source, c, kOfBf16);
    }
  }
  // Fewer rows than that travel as floats.
  Case c = TwoRanks(10);
  c.exchange.bf16_rows = 11;
  CheckCase(group, source, c, kBound);
}

TEST_CASE("two devices: replicated outputs in bf16") {
  if (Skipped(2)) return;
  const RankGroup group(2);
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  for (const int64_t rows : {3, 600}) {
    Case c = TwoRanks(rows);
    c.half = true;
    c.graph = true;
    CheckCase(group, source, c, kOfBf16);
  }
}

TEST_CASE("outputs of two ranks", "[.]") {
  const RankGroup group(2);
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  for (const int64_t rows : {4, 600}) {
    Case c = TwoRanks(rows);
    c.graph = true;
    PrintBits("replicated rows", Run(source, c, group)[0]);
    c.placement = TokenPlacement::kPerRank;
    PrintBits("own rows", Together(Run(source, c, group), source->model().num_layers()));
  }
}

TEST_CASE("two devices: the same bits through the host, where peer access is forbidden") {
  if (Skipped(2)) return;
  CHECK(PrintedBy("outputs of two ranks", false) == PrintedBy("outputs of two ranks", true));
}

TEST_CASE("own tokens on a device: what is refused") {
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  const auto refused = [&](Place place, bool used, int64_t max_rows) -> absl::Status {
    auto group = JoinGroup(NewId(), 0, 1);
    REQUIRE_OK(group.status());
    auto parallel = ExpertParallel::Create(source, Options(0, max_rows, 1), {Shard{}}, *group);
    REQUIRE_OK(parallel.status());
    RankRows rows(0, source->model(), 4);
    auto step = (*parallel)->BeginStep(rows.Info(Phase::kDecode), TokenPlacement::kPerRank);
    if (!step.ok()) return step.status();
    RoutedInput routing = rows.routing(place);
    std::vector<int32_t> ids(routing.ids.size());
    if (used) routing.used_ids = absl::MakeSpan(ids);
    return (*parallel)->Forward(*step, 0, rows.x(0), &routing, rows.y(0));
  };
  REQUIRE_OK(refused(Place::kDevice, false, 4));
  CHECK(Contains(refused(Place::kHost, false, 4), "on the device"));
  CHECK(Contains(refused(Place::kDevice, true, 4), "used_ids"));
  CHECK(Contains(refused(Place::kDevice, false, 3), "a step of 4 rows of all ranks"));
}

}  // namespace
}  // namespace moert::test
