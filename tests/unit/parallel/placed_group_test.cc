// Groups whose experts change owners while they run: the same outputs, whoever computes what, loads
// as they were, and errors that name what does not fit.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "moert/parallel/expert_parallel.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/synthetic_source.h"
#include "support/thread_group.h"

namespace moert {
namespace {

using test::Difference;
using test::OnRanks;
using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kRanks = 3, kExperts = 8, kTopK = 3;

SyntheticShape Shape() { return test::RankShape(); }
EngineOptions Options() { return test::RankOptions(0.5); }
std::vector<std::shared_ptr<Collectives>> Group() { return test::ThreadGroup(kRanks); }

/// Rows of all ranks, and their routing: popular experts have the low numbers.
struct Work {
  explicit Work(int64_t all) : rows(all) {
    std::mt19937_64 random(5);
    x = SyntheticSource::RandomFloats(all * Shape().hidden, 1, &random);
    for (int64_t t = 0; t < all; ++t) {
      const auto first = static_cast<int32_t>(std::min(random() % 8, random() % 8));
      for (int j = 0; j < kTopK; ++j) {
        ids.push_back((first + 2 * j) % kExperts);
        weights.push_back(0.2f + 0.1f * static_cast<float>(random() % 5));
      }
    }
    ids[1] = -1;
  }
  RoutedInput Routing(int64_t first, int64_t count) const {
    RoutedInput routing;
    routing.ids = absl::MakeConstSpan(ids).subspan(kTopK * first, kTopK * count);
    routing.weights = absl::MakeConstSpan(weights).subspan(kTopK * first, kTopK * count);
    return routing;
  }
  MatrixView In(int64_t first, int64_t count) const {
    const int64_t hidden = Shape().hidden;
    return {x.data() + first * hidden, DType::kF32, count, hidden, hidden};
  }

  const int64_t rows;
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

MutableMatrixView Out(std::vector<float>* y) {
  const int64_t hidden = Shape().hidden;
  return {y->data(), DType::kF32, static_cast<int64_t>(y->size()) / hidden, hidden, hidden};
}

/// [layers], of all rows, by one engine.
std::vector<std::vector<float>> OneEngine(const Work& work) {
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(Shape()), Options());
  REQUIRE_OK(engine.status());
  auto step = (*engine)->BeginStep({Phase::kDecode, work.rows});
  REQUIRE_OK(step.status());
  std::vector<std::vector<float>> outputs;
  for (int l = 0; l < Shape().layers; ++l) {
    std::vector<float>& y = outputs.emplace_back(work.x.size());
    REQUIRE_OK((*engine)->ForwardRouted(*step, l, work.In(0, work.rows), work.Routing(0, work.rows),
                                        Out(&y)));
  }
  REQUIRE_OK((*engine)->EndStep(*step));
  return outputs;
}

/// A rank's step, its outputs against those of the whole.
absl::Status CheckedStep(ExpertParallel* parallel, int rank, const Work& work,
                         const std::vector<std::vector<float>>& expected, bool own) {
  const int64_t count = own ? work.rows / kRanks : work.rows, first = own ? count * rank : 0;
  auto step = parallel->BeginStep({Phase::kDecode, count},
                                  own ? TokenPlacement::kPerRank : TokenPlacement::kReplicated);
  if (!step.ok()) return step.status();
  const int64_t hidden = Shape().hidden;
  for (int l = 0; l < Shape().layers; ++l) {
    std::vector<float> y(static_cast<size_t>(count * hidden));
    const RoutedInput routing = work.Routing(first, count);
    const absl::Status status =
        parallel->Forward(*step, l, work.In(first, count), &routing, Out(&y));
    if (!status.ok()) return status;
    const auto whole = absl::MakeConstSpan(expected[l]).subspan(first * hidden, y.size());
    const double difference = Difference(y, whole);
    if (!(difference < test::kRankBound)) {
      return absl::InternalError("layer " + std::to_string(l) + (own ? ", own" : ", replicated") +
                                 ": off by " + std::to_string(difference));
    }
  }
  return parallel->EndStep(*step);
}

ExpertPlacement Owned(const std::vector<std::vector<int32_t>>& owners) {
  return {kRanks, {owners, owners}};
}

/// Every expert alone, then copies of some, then everything everywhere, then all on the last rank.
std::vector<ExpertPlacement> Placements() {
  return {Owned({{0}, {1}, {2}, {0}, {1}, {2}, {0}, {1}}),
          Owned({{0, 1, 2}, {1, 2}, {0, 2}, {1}, {0}, {2}, {1}, {0}}),
          Owned(std::vector<std::vector<int32_t>>(kExperts, {0, 1, 2})),
          Owned(std::vector<std::vector<int32_t>>(kExperts, {2}))};
}

TEST_CASE("outputs are one engine's under every placement, replicated tokens and own ones") {
  const Work work(9);
  const auto expected = OneEngine(work);
  const auto group = Group();
  std::vector<std::vector<std::vector<double>>> loads(kRanks);
  const auto statuses = OnRanks(kRanks, [&](int r) -> absl::Status {
    auto parallel = ExpertParallel::CreatePlaced(std::make_shared<SyntheticSource>(Shape()),
                                                 Options(), Placements()[1], group[r]);
    if (!parallel.ok()) return parallel.status();
    absl::Status status;
    for (const ExpertPlacement& placement : Placements()) {
      if (status.ok()) status = (*parallel)->MoveExperts(placement);
      for (const bool own : {false, true}) {
        if (status.ok()) status = CheckedStep(parallel->get(), r, work, expected, own);
      }
    }
    if (!status.ok()) return status;
    auto taken = (*parallel)->TakeLoads();
    if (!taken.ok()) return taken.status();
    loads[r] = *taken;
    auto again = (*parallel)->TakeLoads();  // they are gone
    if (!again.ok()) return again.status();
    for (const std::vector<double>& layer : *again) {
      for (const double load : layer) {
        if (load != 0) return absl::InternalError("counted twice");
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) UNSCOPED_INFO(status.ToString());
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  // Four placements, two steps each: every id of every step once, whoever computed it.
  std::vector<double> tokens(kExperts);
  for (const int32_t id : work.ids) {
    if (id >= 0) tokens[static_cast<size_t>(id)] += 8;
  }
  for (int r = 0; r < kRanks; ++r) {
    CHECK(loads[r] == std::vector<std::vector<double>>(2, tokens));
  }
}

/// Three ranks with room for everything, by one split; rows that blocks divide, and that they do
/// not.
void CheckWholeRanks(StepSplit split, int64_t rows) {
  CAPTURE(static_cast<int>(split), rows);
  const Work work(rows);
  const auto expected = OneEngine(work);
  const auto group = Group();
  const auto statuses = OnRanks(kRanks, [&](int r) -> absl::Status {
    auto parallel = ExpertParallel::CreatePlaced(std::make_shared<SyntheticSource>(Shape()),
                                                 test::RankOptions(1), Placements()[0], group[r]);
    if (!parallel.ok()) return parallel.status();
    (*parallel)->SetExchange({split});
    for (const bool own : {false, true}) {
      if (own && rows % kRanks != 0) continue;
      const ExpertParallelStats before = (*parallel)->stats();
      const absl::Status status = CheckedStep(parallel->get(), r, work, expected, own);
      if (!status.ok()) return status;
      const ExpertParallelStats stats = (*parallel)->stats();
      const bool all_reduced = stats.all_reduced_bytes > before.all_reduced_bytes;
      const bool by_experts = stats.split == StepSplit::kExperts;
      if (by_experts != (split == StepSplit::kExperts)) return absl::InternalError("another split");
      if (all_reduced != (by_experts && !own)) return absl::InternalError("exchanged");
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
}

TEST_CASE("ranks that hold everything share a step by rows, by experts, or not at all") {
  for (const StepSplit split : {StepSplit::kNone, StepSplit::kRows, StepSplit::kExperts}) {
    for (const int64_t rows : {1, 2, 7, 9}) CheckWholeRanks(split, rows);
  }
}

TEST_CASE("without room for everything, experts are split whatever is asked for") {
  const Work work(6);
  const auto expected = OneEngine(work);
  const auto group = Group();
  const auto statuses = OnRanks(kRanks, [&](int r) -> absl::Status {
    const auto options = r == 1 ? Options() : test::RankOptions(1);  // one of them has not
    auto parallel = ExpertParallel::CreatePlaced(std::make_shared<SyntheticSource>(Shape()),
                                                 options, Placements()[0], group[r]);
    if (!parallel.ok()) return parallel.status();
    (*parallel)->SetExchange({StepSplit::kNone});
    const absl::Status status = CheckedStep(parallel->get(), r, work, expected, false);
    if (!status.ok()) return status;
    return (*parallel)->stats().split == StepSplit::kExperts ? absl::OkStatus()
                                                             : absl::InternalError("not split");
  });
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
}

TEST_CASE("measured loads make the next placement") {
  const Work work(30);
  const auto expected = OneEngine(work);
  const auto group = Group();
  const MoeModelSpec model = SyntheticSource(Shape()).model();
  std::vector<double> highest(kRanks);
  const auto statuses = OnRanks(kRanks, [&](int r) -> absl::Status {
    const ExpertPlacement first = Placements()[3];
    auto parallel = ExpertParallel::CreatePlaced(std::make_shared<SyntheticSource>(Shape()),
                                                 Options(), first, group[r]);
    if (!parallel.ok()) return parallel.status();
    absl::Status status = CheckedStep(parallel->get(), r, work, expected, false);
    if (!status.ok()) return status;
    const auto loads = (*parallel)->TakeLoads();
    if (!loads.ok()) return loads.status();
    ReplicaOptions options;
    options.capacity = {4, 4, 4};
    options.previous = &first;
    const auto next = PlaceReplicas(model, *loads, kRanks, options);
    if (!next.ok()) return next.status();
    status = (*parallel)->MoveExperts(*next);
    if (!status.ok()) return status;
    const int64_t before = (*parallel)->engine()->stats().lookups;
    status = CheckedStep(parallel->get(), r, work, expected, false);
    // Experts that this rank computes now: at most the experts it owns.
    highest[r] = static_cast<double>((*parallel)->engine()->stats().lookups - before);
    return status;
  });
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  for (int r = 0; r < kRanks; ++r) CHECK((highest[r] > 0 && highest[r] <= 2 * 4));
}

TEST_CASE("what is refused, and by whom") {
  const auto refused = [&](const auto& call) {
    const auto group = Group();
    return OnRanks(kRanks, [&](int r) -> absl::Status {
      auto parallel = ExpertParallel::CreatePlaced(std::make_shared<SyntheticSource>(Shape()),
                                                   Options(), Placements()[0], group[r]);
      if (!parallel.ok()) return parallel.status();
      return call(r, parallel->get());
    });
  };
  const auto contains = [](const absl::Status& status, const std::string& text) {
    INFO(status.ToString());
    CHECK(std::string(status.message()).find(text) != std::string::npos);
  };
  for (const absl::Status& status : refused([](int r, ExpertParallel*parallel) {
         return parallel->MoveExperts(Placements()[r == 1 ? 1 : 2]);
       })) {
    contains(status, "ranks were given different placements");
  }
  for (const absl::Status& status : refused([](int, ExpertParallel* parallel) {
         return parallel->MoveExperts({2, Placements()[3].owners});
       })) {
    contains(status, "layer 0 expert 0: owners [2]");
  }
  for (const absl::Status& status : refused([](int, ExpertParallel* parallel) -> absl::Status {
         auto step = parallel->BeginStep({Phase::kDecode, 4}, TokenPlacement::kReplicated);
         if (!step.ok()) return step.status();
         return parallel->MoveExperts(Placements()[1]);
       })) {
    contains(status, "is open");
  }
  for (const absl::Status& status : refused([](int, ExpertParallel* parallel) -> absl::Status {
         auto step = parallel->BeginStep({Phase::kDecode, 4}, TokenPlacement::kReplicated);
         if (!step.ok()) return step.status();
         const Work work(4);
         std::vector<float> y(work.x.size());
         return parallel->Forward(*step, 0, work.In(0, 4), nullptr, Out(&y));
       })) {
    contains(status, "placed groups bring their routing");
  }
  // A group over shards does not move them.
  const auto group = Group();
  const auto statuses = OnRanks(kRanks, [&](int r) -> absl::Status {
    std::vector<Shard> shards(kRanks);
    for (int i = 0; i < kRanks; ++i) {
      shards[i].first_expert = kExperts * i / kRanks;
      shards[i].num_experts = kExperts * (i + 1) / kRanks - shards[i].first_expert;
      shards[i].shared_experts = i == 0;
    }
    auto parallel = ExpertParallel::Create(std::make_shared<SyntheticSource>(Shape()), Options(),
                                           shards, group[r]);
    if (!parallel.ok()) return parallel.status();
    return r == 0 ? (*parallel)->TakeLoads().status() : (*parallel)->MoveExperts(Placements()[0]);
  });
  for (const absl::Status& status : statuses) contains(status, "do not move");
}

}  // namespace
}  // namespace moert
