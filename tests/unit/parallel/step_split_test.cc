// How ranks that hold every expert share a step: by the times that an H200 and its links have, at
// the shape of Qwen3-30B-A3B.
#include "parallel/step_split.h"

#include <memory>
#include <vector>

#include "moert/tools/trace.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/thread_group.h"

namespace moert {
namespace {

constexpr DeviceRates kH200 = {4.9e12, 550e12};
constexpr AllReduceCost kNvlink = {8.5e-6, 250e9}, kThroughHost = {40e-6, 10e9};
constexpr auto kReplicated = TokenPlacement::kReplicated;
constexpr auto kOwn = TokenPlacement::kPerRank;

SplitRule Rule(const AllReduceCost& exchange, double bytes_per_weight = 2) {
  constexpr int64_t kHidden = 2048, kIntermediate = 768;
  TraceHeader header;
  header.source = "qwen3-30b";
  MoeLayerSpec layer;
  layer.num_experts = 128;
  layer.hidden = kHidden;
  layer.intermediate = kIntermediate;
  layer.routing.top_k = 8;
  header.model.layers.assign(2, layer);
  TraceVersion version;
  const auto bytes = static_cast<int64_t>(3 * kHidden * kIntermediate * bytes_per_weight);
  version.bytes.assign(2, std::vector<int64_t>(128, bytes));
  header.versions.push_back(version);
  return SplitRule(*MakeSizesSource(header), 2, kH200, exchange);
}

TEST_CASE("few rows stay on every rank, more split experts, prompts split rows") {
  const SplitRule rule = Rule(kNvlink);
  CHECK(rule.Choose(kReplicated, 1, 4) == StepSplit::kNone);
  CHECK(rule.Choose(kReplicated, 8, 4) == StepSplit::kExperts);
  CHECK(rule.Choose(kReplicated, 256, 4) == StepSplit::kExperts);
  CHECK(rule.Choose(kReplicated, 8192, 4) == StepSplit::kRows);
  // Half as many bytes to read: an exchange costs more beside them.
  CHECK(Rule(kNvlink, 0.5).Choose(kReplicated, 4, 4) == StepSplit::kNone);
}

TEST_CASE("a link through the host exchanges nothing that one rank computes sooner") {
  const SplitRule rule = Rule(kThroughHost);
  for (const int64_t rows : {1, 8, 64, 256, 2048, 8192}) {
    CAPTURE(rows);
    const StepSplit split = rule.Choose(kReplicated, rows, 4);
    CHECK(rule.Seconds(split, kReplicated, rows, 4) <=
          rule.Seconds(StepSplit::kNone, kReplicated, rows, 4));
  }
  CHECK(rule.Choose(kReplicated, 8, 4) == StepSplit::kNone);
  CHECK(rule.Choose(kReplicated, 8192, 4) == StepSplit::kNone);
}

TEST_CASE("own tokens of a prompt stay where they are; those of a decode step share experts") {
  const SplitRule rule = Rule(kNvlink);
  CHECK(rule.Choose(kOwn, 8192, 4) == StepSplit::kNone);
  CHECK(rule.Choose(kOwn, 256, 4) == StepSplit::kExperts);
  CHECK(rule.Choose(kOwn, 2, 4) == StepSplit::kNone);
}

TEST_CASE("ranks measure the same times") {
  constexpr int kRanks = 3;
  const auto group = test::ThreadGroup(kRanks);
  std::vector<AllReduceCost> costs(kRanks);
  const auto statuses = test::OnRanks(kRanks, [&](int r) -> absl::Status {
    std::vector<float> data(1 << 16);
    auto cost = MeasureAllReduce(group[r].get(), data.data(), 64, 1 << 16, nullptr);
    if (cost.ok()) costs[r] = *cost;
    return cost.status();
  });
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  for (const AllReduceCost& cost : costs) {
    CHECK((cost.seconds > 0 && cost.bytes_per_s > 0));
    CHECK(cost.seconds == costs[0].seconds);
    CHECK(cost.bytes_per_s == costs[0].bytes_per_s);
  }
}

}  // namespace
}  // namespace moert
