// Placement with copies: room is kept to, the heaviest have copies, the load evens out, and little
// moves where little is gained.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "moert/parallel/placement.h"
#include "moert/parallel/shard.h"
#include "support/catch.h"
#include "support/layers_alike.h"

namespace moert {
namespace {

using test::LayersAlike;

std::vector<std::vector<double>> ZipfLoads(int layers, int experts, double exponent,
                                           uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<double>> loads;
  for (int l = 0; l < layers; ++l) {
    std::vector<double>& layer = loads.emplace_back();
    for (int e = 0; e < experts; ++e) layer.push_back(std::pow(e + 1.0, -exponent));
    std::shuffle(layer.begin(), layer.end(), random);
  }
  return loads;
}

/// The load of each rank.
std::vector<double> RankLoads(const std::vector<std::vector<int32_t>>& owners,
                              const std::vector<double>& loads, int ranks) {
  std::vector<double> load(static_cast<size_t>(ranks));
  for (size_t e = 0; e < owners.size(); ++e) {
    for (const int32_t r : owners[e]) {
      load[static_cast<size_t>(r)] += loads[e] / static_cast<double>(owners[e].size());
    }
  }
  return load;
}

double Imbalance(const ExpertPlacement& placement, const std::vector<std::vector<double>>& loads) {
  double worst = 0;
  for (size_t l = 0; l < loads.size(); ++l) {
    const auto load = RankLoads(placement.owners[l], loads[l], placement.ranks);
    const double mean = std::accumulate(load.begin(), load.end(), 0.0) / placement.ranks;
    worst = std::max(worst, *std::max_element(load.begin(), load.end()) / mean);
  }
  return worst;
}

std::vector<int> Counts(const ExpertPlacement& placement, size_t layer) {
  std::vector<int> counts(static_cast<size_t>(placement.ranks));
  for (const auto& owners : placement.owners[layer]) {
    for (const int32_t r : owners) ++counts[static_cast<size_t>(r)];
  }
  return counts;
}

bool Contains(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("without room beyond, every expert has one owner, as PlaceExperts has it") {
  const MoeModelSpec model = LayersAlike(3, 30);
  const auto loads = ZipfLoads(3, 30, 0.9, 3);
  const auto placement = PlaceReplicas(model, loads, 4, {});
  REQUIRE_OK(placement.status());
  const auto shards = PlaceExperts(model, loads, 4);
  REQUIRE_OK(shards.status());
  for (size_t l = 0; l < 3; ++l) {
    for (size_t r = 0; r < 4; ++r) {
      for (const int32_t e : (*shards)[r].experts[l]) {
        CHECK(placement->owners[l][static_cast<size_t>(e)] ==
              std::vector<int32_t>{static_cast<int32_t>(r)});
      }
    }
  }
}

TEST_CASE("room beyond holds copies of the heaviest, and evens out what owners alone cannot") {
  const MoeModelSpec model = LayersAlike(4, 64);
  // One expert has more than a quarter of the tokens.
  const auto loads = ZipfLoads(4, 64, 1.4, 5);
  const auto alone = PlaceReplicas(model, loads, 4, {});
  REQUIRE_OK(alone.status());
  CHECK(Imbalance(*alone, loads) > 1.3);
  for (const std::vector<int>& capacity :
       std::vector<std::vector<int>>{{18, 18, 18, 18}, {10, 14, 20, 30}, {64, 64, 64, 64}}) {
    ReplicaOptions options;
    options.capacity = capacity;
    const auto placement = PlaceReplicas(model, loads, 4, options);
    REQUIRE_OK(placement.status());
    REQUIRE_OK(CheckPlacement(model, *placement));
    CHECK(Imbalance(*placement, loads) < 1.05);
    for (size_t l = 0; l < 4; ++l) {
      const std::vector<int> counts = Counts(*placement, l);
      for (size_t r = 0; r < 4; ++r) CHECK(counts[r] <= capacity[r]);
      // No expert has more copies than a heavier one, but for what had no rank left.
      const auto heaviest = std::max_element(loads[l].begin(), loads[l].end()) - loads[l].begin();
      CHECK(placement->owners[l][static_cast<size_t>(heaviest)].size() > 1);
    }
    const auto again = PlaceReplicas(model, loads, 4, options);
    CHECK(again->owners == placement->owners);
  }
}

TEST_CASE("layers keep their owners unless others lower the highest load enough") {
  const MoeModelSpec model = LayersAlike(6, 64);
  const auto before = ZipfLoads(6, 64, 1.0, 7);
  auto after = before;
  for (double& load : after[1]) load *= 1 + 1e-3 * static_cast<double>(&load - after[1].data());
  after[4] = ZipfLoads(1, 64, 1.0, 99)[0];  // others are popular now
  ReplicaOptions options;
  options.capacity = {18, 18, 18, 18};
  const auto first = PlaceReplicas(model, before, 4, options);
  REQUIRE_OK(first.status());
  options.previous = &*first;
  const auto second = PlaceReplicas(model, after, 4, options);
  REQUIRE_OK(second.status());
  for (size_t l : {0, 1, 2, 3, 5}) CHECK(second->owners[l] == first->owners[l]);
  CHECK(second->owners[4] != first->owners[4]);
  CHECK(Imbalance(*second, after) < 1.1);
  // Where there is less room now, what was before does not count.
  options.capacity = {16, 16, 16, 16};
  const auto smaller = PlaceReplicas(model, before, 4, options);
  REQUIRE_OK(smaller.status());
  for (size_t l = 0; l < 6; ++l) CHECK(Counts(*smaller, l) == std::vector<int>(4, 16));
}

TEST_CASE("loads of zero, one rank, and what shared experts cost") {
  const MoeModelSpec model = LayersAlike(1, 8, 64);
  const std::vector<std::vector<double>> none = {std::vector<double>(8, 0.0)};
  ReplicaOptions options;
  options.capacity = {8, 8};
  const auto idle = PlaceReplicas(model, none, 2, options);
  REQUIRE_OK(idle.status());
  REQUIRE_OK(CheckPlacement(model, *idle));
  const std::vector<std::vector<double>> even = {std::vector<double>(8, 1.0)};
  options.shared_load = 8;
  options.capacity = {8, 8};
  const auto shared = PlaceReplicas(model, even, 2, options);
  REQUIRE_OK(shared.status());
  const auto load = RankLoads(shared->owners[0], even[0], 2);
  CHECK(load[0] < load[1]);
  const auto one = PlaceReplicas(model, even, 1, {});
  REQUIRE_OK(one.status());
  for (const auto& owners : one->owners[0]) CHECK(owners == std::vector<int32_t>{0});
}

TEST_CASE("what does not fit is named") {
  const MoeModelSpec model = LayersAlike(2, 8);
  const std::vector<std::vector<double>> loads(2, std::vector<double>(8, 1.0));
  const auto with = [&](auto change) {
    ReplicaOptions options;
    change(&options);
    return PlaceReplicas(model, loads, 2, options).status();
  };
  CHECK(Contains(with([](auto* o) { o->capacity = {3, 4}; }), "room for 7 experts; layer 0 has 8"));
  CHECK(Contains(with([](auto* o) { o->capacity = {8}; }), "capacity of 1 ranks; there are 2"));
  CHECK(Contains(with([](auto* o) { o->capacity = {9, -1}; }), "capacity -1"));
  CHECK(Contains(with([](auto* o) { o->gain = 2; }), "gain 2"));
  CHECK(Contains(with([](auto* o) { o->shared_load = NAN; }), "shared_load"));
  ExpertPlacement previous;
  previous.ranks = 3;
  CHECK(Contains(with([&](auto* o) { o->previous = &previous; }), "previous: of 3 ranks"));
  CHECK(Contains(PlaceReplicas(model, loads, 9, {}).status(), "9 ranks"));

  ExpertPlacement placement{2, {}};
  CHECK(Contains(CheckPlacement(model, placement), "owners in 0 layers; the model has 2"));
  placement.owners.assign(2, {std::vector<std::vector<int32_t>>(8, {0})});
  REQUIRE_OK(CheckPlacement(model, placement));
  for (const std::vector<int32_t>& wrong :
       std::vector<std::vector<int32_t>>{{}, {2}, {-1}, {1, 0}, {0, 0}}) {
    placement.owners[1][3] = wrong;
    CHECK(Contains(CheckPlacement(model, placement), "layer 1 expert 3"));
  }
  placement.owners[1].resize(7);
  CHECK(Contains(CheckPlacement(model, placement), "owners of 7 experts in layer 1"));
}

}  // namespace
}  // namespace moert
