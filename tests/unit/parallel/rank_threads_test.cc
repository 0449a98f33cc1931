// Ranks that run on the same CPUs share them: one pool in a process, a part of the CPUs for each of
// several processes.
#include "parallel/rank_threads.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "moert/parallel/expert_parallel.h"
#include "moert/thread_pool.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/thread_group.h"

namespace moert {
namespace {

RankPlace At(uint64_t process, uint64_t cpus, bool asks = true) {
  return {process, cpus, 0, asks ? 1 : 0};
}

TEST_CASE("CPUs are shared by ranks of a process and by processes") {
  // Alone, beside somebody on other CPUs, or with threads of one's own.
  CHECK(ThreadsOf({At(1, 1)}, 0, 32, 2, true) == 0);
  CHECK(ThreadsOf({At(1, 1), At(2, 2)}, 0, 32, 2, true) == 0);
  CHECK(ThreadsOf({At(1, 1, false), At(1, 1)}, 0, 32, 2, true) == 0);
  CHECK(ThreadsOf({At(1, 1, false), At(1, 1)}, 1, 32, 2, true) == 0);
  // Two ranks drive their devices, and each has two readers.
  CHECK(ThreadsOf({At(1, 1), At(1, 1)}, 1, 32, 2, true) == 26);
  CHECK(ThreadsOf({At(1, 1), At(1, 1)}, 1, 32, 2, false) == 32);
  CHECK(ThreadsOf({At(1, 1), At(2, 1)}, 1, 32, 2, true) == 13);
  // Two processes with two ranks each, and few CPUs: half of them compute.
  CHECK(ThreadsOf({At(1, 1), At(1, 1), At(2, 1), At(2, 1)}, 2, 16, 2, true) == 4);
  CHECK(ThreadsOf({At(1, 1), At(2, 1), At(3, 1)}, 0, 2, 2, true) == 1);
}

TEST_CASE("ranks that are threads have one pool, but for one with a pool of its own") {
  constexpr int kRanks = 3;
  const auto group = test::ThreadGroup(kRanks);
  auto made = CreateThreadPool({1});
  REQUIRE_OK(made.status());
  const std::shared_ptr<ThreadPool> own = *std::move(made);
  std::vector<std::shared_ptr<ThreadPool>> pools;
  for (int round = 0; round < 2; ++round) {
    std::vector<EngineOptions> options(kRanks);
    options[1].thread_pool = own;
    for (const absl::Status& status : test::OnRanks(kRanks, [&](int r) {
           EngineOptions& mine = options[static_cast<size_t>(r)];
           const auto places = GatherPlaces(group[static_cast<size_t>(r)].get(), mine);
           return places.ok() ? ShareCpus(*places, r, &mine) : places.status();
         })) {
      REQUIRE_OK(status);
    }
    CHECK(options[1].thread_pool == own);
    REQUIRE(options[0].thread_pool != nullptr);
    CHECK(options[2].thread_pool == options[0].thread_pool);
    CHECK(options[0].thread_pool->num_threads() == UsableCpus());
    pools.push_back(options[0].thread_pool);
  }
  CHECK(pools[0] != pools[1]);  // another group is another matter
}

TEST_CASE("ranks of a process meet, those of another process do not") {
  const std::vector<RankPlace> places = {{1, 1, 70}, {2, 1, 71}, {1, 1, 72}};
  RankMeeting(places, 1).Meet(std::chrono::hours(1));  // alone
  for (int round = 0; round < 2; ++round) {
    std::atomic<int> here{0};
    for (const absl::Status& status : test::OnRanks(2, [&](int r) -> absl::Status {
           if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
           ++here;
           RankMeeting(places, 2 * r).Meet(std::chrono::hours(1));
           return here == 2 ? absl::OkStatus() : absl::InternalError("one went on alone");
         })) {
      CHECK(status.ok());
    }
  }
}

TEST_CASE("nobody waits for ever for a rank that does not come") {
  const RankMeeting meeting({{1, 1, 80}, {1, 1, 81}}, 0);
  const auto begin = std::chrono::steady_clock::now();
  meeting.Meet(std::chrono::milliseconds(30));
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(30));
}

TEST_CASE("a group of ranks without options for threads computes with one pool") {
  constexpr int kRanks = 2;
  const auto group = test::ThreadGroup(kRanks);
  const auto statuses = test::OnRanks(kRanks, [&](int r) -> absl::Status {
    EngineOptions options = test::RankOptions(1);
    options.threads = 0;
    const test::SyntheticShape shape = test::RankShape();
    std::vector<Shard> shards(kRanks);
    for (int i = 0; i < kRanks; ++i) {
      shards[i].first_expert = 4 * i;
      shards[i].num_experts = 4;
      shards[i].shared_experts = i == 0;
    }
    auto parallel = ExpertParallel::Create(std::make_shared<test::SyntheticSource>(shape), options,
                                           shards, group[r]);
    if (!parallel.ok()) return parallel.status();
    const std::vector<float> x(static_cast<size_t>(4 * shape.hidden), 0.1f);
    std::vector<float> y(x.size());
    for (int s = 0; s < 20; ++s) {
      auto step = (*parallel)->BeginStep({Phase::kDecode, 4}, TokenPlacement::kReplicated);
      if (!step.ok()) return step.status();
      for (int l = 0; l < shape.layers; ++l) {
        const absl::Status status =
            (*parallel)->Forward(*step, l, {x.data(), DType::kF32, 4, shape.hidden, shape.hidden},
                                 nullptr, {y.data(), DType::kF32, 4, shape.hidden, shape.hidden});
        if (!status.ok()) return status;
      }
      const absl::Status status = (*parallel)->EndStep(*step);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) CHECK(status.ok());
}

}  // namespace
}  // namespace moert
