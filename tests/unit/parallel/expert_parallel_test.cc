// Ranks that are threads give what one engine gives; one that fails or does not come fails all.
#include "moert/parallel/expert_parallel.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/ranks.h"
#include "support/shards.h"
#include "support/synthetic_source.h"
#include "support/thread_group.h"

namespace moert {
namespace {

using test::Difference;
using test::Experts;
using test::OnRanks;
using test::SyntheticShape;
using test::SyntheticSource;

SyntheticShape Shape() { return test::RankShape(); }
EngineOptions Options() { return test::RankOptions(0.6); }

/// Three ranks: two own the experts 0 to 3 by channels, one the others.
std::vector<Shard> ThreeShards() {
  std::vector<Shard> shards = {Experts(0, 4, true), Experts(0, 4, true), Experts(4, 4, false)};
  for (int i = 0; i < 2; ++i) {
    shards[i].first_channel = 64 * i;
    shards[i].num_channels = 64;
  }
  return shards;
}

void RequireAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
}

std::vector<float> Rows(int64_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  return SyntheticSource::RandomFloats(rows * Shape().hidden, 1, &random);
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  RoutedInput input() const {
    RoutedInput routed;
    routed.ids = ids;
    routed.weights = weights;
    return routed;
  }
};

Routing RandomRouting(int64_t rows, uint32_t seed) {
  std::mt19937 random(seed);
  Routing routing;
  for (int64_t t = 0; t < rows; ++t) {
    const auto first = static_cast<int32_t>(random() % 8);
    for (int j = 0; j < 3; ++j) {
      routing.ids.push_back((first + 2 * j) % 8);
      routing.weights.push_back(0.2f + 0.1f * static_cast<float>(random() % 5));
    }
  }
  return routing;
}

MatrixView In(const std::vector<float>& x, int64_t rows) {
  return {x.data(), DType::kF32, rows, Shape().hidden, Shape().hidden};
}
MutableMatrixView Out(std::vector<float>* y, int64_t rows) {
  return {y->data(), DType::kF32, rows, Shape().hidden, Shape().hidden};
}

/// Outputs of all layers on the same rows, of one engine.
std::vector<std::vector<float>> OneEngine(const std::vector<float>& x, int64_t rows,
                                          const RoutedInput* routing) {
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(Shape()), Options());
  REQUIRE_OK(engine.status());
  auto step = (*engine)->BeginStep({Phase::kDecode, rows});
  REQUIRE_OK(step.status());
  std::vector<std::vector<float>> outputs;
  for (int l = 0; l < Shape().layers; ++l) {
    std::vector<float> y(x.size());
    REQUIRE_OK(routing == nullptr
                   ? (*engine)->Forward(*step, l, In(x, rows), Out(&y, rows))
                   : (*engine)->ForwardRouted(*step, l, In(x, rows), *routing, Out(&y, rows)));
    outputs.push_back(std::move(y));
  }
  REQUIRE_OK((*engine)->EndStep(*step));
  return outputs;
}

TEST_CASE("replicated tokens: every rank gets the same whole output") {
  constexpr int64_t kRows = 4;
  const std::vector<float> x = Rows(kRows, 1);
  const auto expected = OneEngine(x, kRows, nullptr);
  const std::vector<Shard> shards = ThreeShards();
  const auto group = test::ThreadGroup(3);
  std::vector<std::vector<std::vector<float>>> outputs(3);
  RequireAllOk(OnRanks(3, [&](int r) -> absl::Status {
    auto parallel = ExpertParallel::Create(std::make_shared<SyntheticSource>(Shape()), Options(),
                                           shards, group[r]);
    if (!parallel.ok()) return parallel.status();
    for (int round = 0; round < 3; ++round) {
      outputs[r].clear();
      auto step = (*parallel)->BeginStep({Phase::kDecode, kRows}, TokenPlacement::kReplicated);
      if (!step.ok()) return step.status();
      for (int l = 0; l < Shape().layers; ++l) {
        std::vector<float> y(x.size());
        const absl::Status status =
            (*parallel)->Forward(*step, l, In(x, kRows), nullptr, Out(&y, kRows));
        if (!status.ok()) return status;
        outputs[r].push_back(std::move(y));
      }
      if (auto status = (*parallel)->EndStep(*step); !status.ok()) return status;
    }
    return (*parallel)->stats().all_reduced_bytes > 0 ? absl::OkStatus()
                                                      : absl::InternalError("nothing was reduced");
  }));
  for (int l = 0; l < Shape().layers; ++l) {
    CHECK(Difference(outputs[0][l], expected[l]) < test::kRankBound);
    CHECK(outputs[1][l] == outputs[0][l]);
    CHECK(outputs[2][l] == outputs[0][l]);
  }
}

TEST_CASE("own tokens, any number a rank: each gets its rows' whole output") {
  const std::vector<Shard> shards = ThreeShards();
  for (const std::vector<int64_t>& rows :
       std::vector<std::vector<int64_t>>{{5, 1, 9}, {0, 7, 2}, {0, 0, 3}}) {
    const int64_t total = rows[0] + rows[1] + rows[2];
    const std::vector<float> x = Rows(total, 2);
    const Routing routing = RandomRouting(total, 4);
    const RoutedInput routed = routing.input();
    const auto expected = OneEngine(x, total, &routed);
    const auto group = test::ThreadGroup(3);
    std::vector<int64_t> crossed(3);
    RequireAllOk(OnRanks(3, [&](int r) -> absl::Status {
      int64_t first = 0;
      for (int i = 0; i < r; ++i) first += rows[i];
      auto parallel = ExpertParallel::Create(std::make_shared<SyntheticSource>(Shape()), Options(),
                                             shards, group[r]);
      if (!parallel.ok()) return parallel.status();
      auto step = (*parallel)->BeginStep({Phase::kPrefill, rows[r]}, TokenPlacement::kPerRank);
      if (!step.ok()) return step.status();
      const int64_t hidden = Shape().hidden;
      for (int l = 0; l < Shape().layers; ++l) {
        const std::vector<float> mine(x.begin() + first * hidden,
                                      x.begin() + (first + rows[r]) * hidden);
        std::vector<float> y(mine.size());
        RoutedInput own;
        own.ids = absl::MakeConstSpan(routing.ids).subspan(3 * first, 3 * rows[r]);
        own.weights = absl::MakeConstSpan(routing.weights).subspan(3 * first, 3 * rows[r]);
        const absl::Status status =
            (*parallel)->Forward(*step, l, In(mine, rows[r]), &own, Out(&y, rows[r]));
        if (!status.ok()) return status;
        const auto whole = absl::MakeConstSpan(expected[l]).subspan(first * hidden, y.size());
        if (!y.empty() && !(Difference(y, whole) < test::kRankBound)) {
          return absl::InternalError("another output");
        }
      }
      crossed[r] = (*parallel)->stats().sent_rows + (*parallel)->stats().received_rows;
      return (*parallel)->EndStep(*step);
    }));
    CHECK(*std::max_element(crossed.begin(), crossed.end()) > 0);
  }
}

TEST_CASE("a rank that does not come: the others fail in time, and name it") {
  const auto group = test::ThreadGroup(3, test::kSecond / 5);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int r) -> absl::Status {
    if (r == 1) return absl::OkStatus();  // killed
    float value = 1;
    return group[r]->AllReduce(&value, 1, nullptr);
  });
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took < std::chrono::seconds(5));
  for (const int r : {0, 2}) {
    CHECK(statuses[r].code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(std::string(statuses[r].message()).find("all_reduce: rank 1 of 3 did not come") !=
          std::string::npos);
  }
  // The group stays unusable, for the late one too.
  float value = 1;
  CHECK(group[1]->AllReduce(&value, 1, nullptr).code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("a rank killed between layers: nothing hangs") {
  const std::vector<float> x = Rows(2, 1);
  const auto group = test::ThreadGroup(2, test::kSecond / 2);
  const std::vector<Shard> shards = {Experts(0, 4, true), Experts(4, 4, false)};
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int r) -> absl::Status {
    auto parallel = ExpertParallel::Create(std::make_shared<SyntheticSource>(Shape()), Options(),
                                           shards, group[r]);
    if (!parallel.ok()) return parallel.status();
    auto step = (*parallel)->BeginStep({Phase::kDecode, 2}, TokenPlacement::kReplicated);
    if (!step.ok()) return step.status();
    absl::Status status;
    for (int l = 0; l < Shape().layers && status.ok(); ++l) {
      if (r == 1 && l == 1) return absl::OkStatus();  // gone
      std::vector<float> y(x.size());
      status = (*parallel)->Forward(*step, l, In(x, 2), nullptr, Out(&y, 2));
    }
    return status;
  });
  CHECK(statuses[0].code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(statuses[1].ok());
}

TEST_CASE("a rank whose reads fail tells the others at once") {
  const std::vector<float> x = Rows(2, 1);
  const auto group = test::ThreadGroup(2);  // a timeout would take 20 s
  const std::vector<Shard> shards = {Experts(0, 4, true), Experts(4, 4, false)};
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int r) -> absl::Status {
    auto source = std::make_shared<SyntheticSource>(Shape());
    auto parallel = ExpertParallel::Create(source, Options(), shards, group[r]);
    if (!parallel.ok()) return parallel.status();
    source->set_broken(r == 1);
    auto step = (*parallel)->BeginStep({Phase::kDecode, 2}, TokenPlacement::kReplicated);
    if (!step.ok()) return step.status();
    std::vector<int32_t> ids = {0, 4, 5, 1, 6, 7};
    const std::vector<float> weights(6, 0.3f);
    RoutedInput routing;
    routing.ids = ids;
    routing.weights = weights;
    std::vector<float> y(x.size());
    return (*parallel)->Forward(*step, 0, In(x, 2), &routing, Out(&y, 2));
  });
  CHECK(statuses[1].code() == absl::StatusCode::kDataLoss);
  CHECK(statuses[0].code() == absl::StatusCode::kDataLoss);
  CHECK(std::string(statuses[0].message()).find("rank 1 gave up") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("groups of the wrong size, bad shards and disagreeing ranks are refused by name") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const auto create = [&](int size, const std::vector<Shard>& shards) {
    const auto group = test::ThreadGroup(size);
    return OnRanks(size, [&](int r) {
      return ExpertParallel::Create(source, Options(), shards, group[r]).status();
    });
  };
  for (const absl::Status& status : create(2, ThreeShards())) {
    CHECK(std::string(status.message()).find("3 shards for a group of 2 ranks") !=
          std::string::npos);
  }
  for (const absl::Status& status : create(2, {Experts(0, 5, true), Experts(4, 4, false)})) {
    CHECK(std::string(status.message()).find("both own expert 4") != std::string::npos);
  }
  const std::vector<Shard> shards = {Experts(0, 4, true), Experts(4, 4, false)};
  const auto begin = [&](const std::vector<int64_t>& rows, TokenPlacement placement) {
    const auto group = test::ThreadGroup(2);
    return OnRanks(2, [&](int r) -> absl::Status {
      auto parallel = ExpertParallel::Create(source, Options(), shards, group[r]);
      if (!parallel.ok()) return parallel.status();
      return (*parallel)->BeginStep({Phase::kDecode, rows[r]}, placement).status();
    });
  };
  for (const absl::Status& status : begin({2, 3}, TokenPlacement::kReplicated)) {
    CHECK(std::string(status.message()).find("ranks disagree about a step") != std::string::npos);
  }
  for (const absl::Status& status :
       begin({Options().max_tokens_per_forward, 1}, TokenPlacement::kPerRank)) {
    CHECK(std::string(status.message()).find("max_tokens_per_forward") != std::string::npos);
  }
  const auto group = test::ThreadGroup(2);
  const std::vector<absl::Status> mixed = OnRanks(2, [&](int r) {
    std::vector<float> data(4);
    return r == 0 ? group[0]->AllReduce(data.data(), 3, nullptr)
                  : group[1]->AllReduce(data.data(), 4, nullptr);
  });
  for (const absl::Status& status : mixed) {
    CHECK(std::string(status.message())
              .find("rank 0 calls all_reduce of 3, rank 1 all_reduce of 4") != std::string::npos);
  }
  CHECK_FALSE(MakeThreadCollectives(0, test::kSecond).ok());
  CHECK_FALSE(MakeThreadCollectives(2, 0).ok());
}

TEST_CASE("without NCCL its group says what is missing") {
  NcclOptions options;
  options.rank = 2;
  options.size = 2;
  CHECK(MakeNcclCollectives(options).status().code() == absl::StatusCode::kInvalidArgument);
  const auto id = MakeNcclId();
  if (id.ok()) return;  // it is there
  CHECK(id.status().code() == absl::StatusCode::kUnavailable);
  options.rank = 0;
  CHECK(MakeNcclCollectives(options).status() == id.status());
}

}  // namespace
}  // namespace moert
