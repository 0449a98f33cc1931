// One group serves engines one after the other, as the tests on devices do it: shards and placed
// experts, replicated tokens and own ones. Every rank makes the same collective calls in the same
// order, whatever comes between.
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "moert/parallel/expert_parallel.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/shards.h"
#include "support/synthetic_source.h"
#include "support/thread_group.h"

namespace moert {
namespace {

using test::RankShape;
using test::SyntheticSource;

constexpr int kRanks = 2;
constexpr int64_t kRows = 6;

/// Notes what its rank calls. How many bytes go from one rank to another is theirs.
class Noted final : public Collectives {
 public:
  explicit Noted(std::shared_ptr<Collectives> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  absl::Status AllReduce(float* data, int64_t count, void* stream) override {
    calls.push_back("all_reduce " + std::to_string(count));
    return group_->AllReduce(data, count, stream);
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all, void* stream) override {
    calls.push_back("all_gather " + std::to_string(bytes));
    return group_->AllGather(mine, bytes, all, stream);
  }
  absl::Status AllToAll(const void* send, absl::Span<const int64_t> send_bytes, void* recv,
                        absl::Span<const int64_t> recv_bytes, void* stream) override {
    calls.push_back("all_to_all");
    return group_->AllToAll(send, send_bytes, recv, recv_bytes, stream);
  }
  absl::Status Wait(void* stream, int64_t timeout_ns) override {
    return group_->Wait(stream, timeout_ns);
  }
  void Abort(const absl::Status& why) override {
    calls.push_back("abort");
    group_->Abort(why);
  }

  std::vector<std::string> calls;

 private:
  const std::shared_ptr<Collectives> group_;
};

/// One step, in which a rank has all rows or its own half.
absl::Status Step(ExpertParallel* parallel, int rank, TokenPlacement tokens) {
  const int64_t hidden = RankShape().hidden, k = RankShape().top_k;
  const bool own = tokens == TokenPlacement::kPerRank;
  const int64_t rows = own ? kRows / kRanks : kRows;
  std::mt19937_64 random(own ? 3 + static_cast<unsigned>(rank) : 3);
  const std::vector<float> x = SyntheticSource::RandomFloats(rows * hidden, 1, &random);
  std::vector<float> y(x.size());
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    const auto first = static_cast<int32_t>(random() % 8);
    for (int32_t j = 0; j < k; ++j) ids.push_back((first + 2 * j) % 8);
  }
  const std::vector<float> weights(ids.size(), 0.3f);
  RoutedInput routing;
  routing.ids = ids;
  routing.weights = weights;
  auto step = parallel->BeginStep({Phase::kDecode, rows}, tokens);
  if (!step.ok()) return step.status();
  for (int l = 0; l < RankShape().layers; ++l) {
    const absl::Status status =
        parallel->Forward(*step, l, {x.data(), DType::kF32, rows, hidden, hidden}, &routing,
                          {y.data(), DType::kF32, rows, hidden, hidden});
    if (!status.ok()) return status;
  }
  return parallel->EndStep(*step);
}

absl::Status Steps(ExpertParallel* parallel, int rank) {
  for (const TokenPlacement tokens : {TokenPlacement::kReplicated, TokenPlacement::kPerRank}) {
    const absl::Status status = Step(parallel, rank, tokens);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

/// Even experts on one rank and odd ones on the other, or the other way round.
ExpertPlacement Placed(int turn) {
  std::vector<std::vector<int32_t>> owners;
  for (int32_t e = 0; e < 8; ++e) owners.push_back({(e + turn) % kRanks});
  return {kRanks, {owners, owners}};
}

absl::Status OnShards(const std::shared_ptr<Collectives>& group, double fraction) {
  auto parallel = ExpertParallel::Create(
      std::make_shared<SyntheticSource>(RankShape()), test::RankOptions(fraction),
      {test::Experts(0, 5, true), test::Experts(5, 3, false)}, group);
  return parallel.ok() ? Steps(parallel->get(), group->rank()) : parallel.status();
}

absl::Status OnPlaced(const std::shared_ptr<Collectives>& group, bool fails) {
  auto parallel = ExpertParallel::CreatePlaced(std::make_shared<SyntheticSource>(RankShape()),
                                               test::RankOptions(0.5), Placed(0), group);
  if (!parallel.ok()) return parallel.status();
  for (int turn = 0; turn < 3; ++turn) {
    absl::Status status = (*parallel)->MoveExperts(Placed(turn));
    if (status.ok()) status = Steps(parallel->get(), group->rank());
    if (!status.ok()) return status;
    if (fails && turn == 1 && group->rank() == 1) {  // before a call that the other makes
      ExpertPlacement wrong = Placed(0);
      wrong.ranks = 3;
      return (*parallel)->MoveExperts(wrong);
    }
  }
  return (*parallel)->TakeLoads().status();
}

TEST_CASE("ranks call alike, engine after engine of one group") {
  const auto threads = test::ThreadGroup(kRanks);
  std::vector<std::shared_ptr<Noted>> group;
  for (const auto& rank : threads) group.push_back(std::make_shared<Noted>(rank));
  const auto statuses = test::OnRanks(kRanks, [&](int r) -> absl::Status {
    absl::Status status;
    for (const double fraction : {1.0, 0.5}) {
      if (status.ok()) status = OnShards(group[r], fraction);
      if (status.ok()) status = OnPlaced(group[r], /*fails=*/false);
    }
    return status;
  });
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  CHECK(group[0]->calls == group[1]->calls);
  CHECK(group[0]->calls.size() > 40);
}

TEST_CASE("a rank that leaves before a collective ends the other's wait, in every later call") {
  const auto threads = test::ThreadGroup(kRanks);
  std::vector<std::shared_ptr<Noted>> group;
  for (const auto& rank : threads) group.push_back(std::make_shared<Noted>(rank));
  const auto begin = std::chrono::steady_clock::now();
  const auto statuses = test::OnRanks(
      kRanks, [&](int r) -> absl::Status { return OnPlaced(group[r], /*fails=*/true); });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));  // no timeout
  CHECK(absl::IsInvalidArgument(statuses[1]));
  CHECK(!statuses[0].ok());
  CHECK(group[1]->calls.back() == "abort");
  CHECK(!OnShards(group[0], 1.0).ok());  // the group is unusable
}

}  // namespace
}  // namespace moert
