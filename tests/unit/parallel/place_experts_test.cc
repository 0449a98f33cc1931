// Placement by load: every rank as many experts and nearly the same load, whatever the loads are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "moert/parallel/shard.h"
#include "support/catch.h"
#include "support/layers_alike.h"

namespace moert {
namespace {

using test::LayersAlike;

/// Zipf loads, popular experts anywhere.
std::vector<std::vector<double>> ZipfLoads(int layers, int experts, double exponent) {
  std::mt19937 random(3);
  std::vector<std::vector<double>> loads;
  for (int l = 0; l < layers; ++l) {
    std::vector<double>& layer = loads.emplace_back();
    for (int e = 0; e < experts; ++e) layer.push_back(std::pow(e + 1.0, -exponent));
    std::shuffle(layer.begin(), layer.end(), random);
  }
  return loads;
}

/// The most loaded rank's load over the least that it can be, the worst of all layers: the mean, or
/// the heaviest expert, or the shared ones, with as many of the lightest as a rank has to take.
double Excess(const std::vector<Shard>& shards, const std::vector<std::vector<double>>& loads,
              double shared_load) {
  double worst = 0;
  for (size_t l = 0; l < loads.size(); ++l) {
    double most = 0;
    for (const Shard& shard : shards) {
      double load = shard.shared_experts ? shared_load : 0;
      for (const int32_t e : shard.experts[l]) load += loads[l][static_cast<size_t>(e)];
      most = std::max(most, load);
    }
    std::vector<double> sorted = loads[l];
    std::sort(sorted.begin(), sorted.end());
    const auto each = static_cast<int64_t>(sorted.size() / shards.size());
    const auto lightest = [&](int64_t n) {
      return std::accumulate(sorted.begin(), sorted.begin() + n, 0.0);
    };
    const double mean = (shared_load + lightest(static_cast<int64_t>(sorted.size()))) /
                        static_cast<double>(shards.size());
    const double least =
        std::max({mean, sorted.back() + lightest(each - 1), shared_load + lightest(each)});
    worst = std::max(worst, most / least);
  }
  return worst;
}

TEST_CASE("ranks get as many experts, and loads that are nearly equal") {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const double exponent : {0.0, 0.5, 0.8}) {
      CAPTURE(ranks, exponent);
      const MoeModelSpec model = LayersAlike(6, 130);
      const auto loads = ZipfLoads(6, 130, exponent);
      const auto shards = PlaceExperts(model, loads, ranks);
      REQUIRE(shards.ok());
      CHECK(CheckShards(model, *shards).ToString() == "OK");
      for (const Shard& shard : *shards) {
        for (const std::vector<int32_t>& own : shard.experts) {
          CHECK(static_cast<int>(own.size()) - 130 / ranks <= 1);
          CHECK(static_cast<int>(own.size()) - 130 / ranks >= 0);
        }
      }
      // An expert cannot be halved: where the number does not divide, some have one more.
      CHECK(Excess(*shards, loads, 0) < 1.06);
    }
  }
}

TEST_CASE("by range the same loads are far apart") {
  const MoeModelSpec model = LayersAlike(6, 128);
  const auto loads = ZipfLoads(6, 128, 1);
  std::vector<Shard> ranges(4);
  for (int r = 0; r < 4; ++r) {
    ranges[r].shared_experts = r == 0;
    for (int l = 0; l < 6; ++l) {
      std::vector<int32_t>& own = ranges[r].experts.emplace_back();
      for (int32_t e = 32 * r; e < 32 * (r + 1); ++e) own.push_back(e);
    }
  }
  const auto placed = PlaceExperts(model, loads, 4);
  REQUIRE(placed.ok());
  CHECK(Excess(ranges, loads, 0) > 1.4);
  CHECK(Excess(*placed, loads, 0) < 1.03);
}

TEST_CASE("the rank with the shared experts gets less of the others") {
  const MoeModelSpec model = LayersAlike(2, 64, 64);
  const auto loads = ZipfLoads(2, 64, 0.3);
  const auto shards = PlaceExperts(model, loads, 4, /*shared_load=*/2);
  REQUIRE(shards.ok());
  CHECK((*shards)[0].shared_experts);
  CHECK_FALSE((*shards)[1].shared_experts);
  CHECK(Excess(*shards, loads, 2) < 1.03);
  CHECK(PlaceExperts(model, loads, 1)->at(0).whole());
}

TEST_CASE("loads that do not fit are refused by name") {
  const MoeModelSpec model = LayersAlike(2, 4);
  auto loads = ZipfLoads(2, 4, 1);
  const auto error = [&](int ranks, double shared_load = 0) {
    return std::string(PlaceExperts(model, loads, ranks, shared_load).status().message());
  };
  CHECK(error(0).find("0 ranks") != std::string::npos);
  CHECK(error(5).find("5 ranks: must be in [1, 4]") != std::string::npos);
  CHECK(error(2, -1).find("shared_load -1") != std::string::npos);
  loads[1][2] = std::numeric_limits<double>::quiet_NaN();
  CHECK(error(2).find("layer 1 expert 2") != std::string::npos);
  loads[1].pop_back();
  CHECK(error(2).find("3 experts in layer 1, which has 4") != std::string::npos);
  loads.pop_back();
  CHECK(error(2).find("loads of 1 layers") != std::string::npos);
}

}  // namespace
}  // namespace moert
