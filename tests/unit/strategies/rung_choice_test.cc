// The choice of versions against every other that fits, and what keeps an expert where it is.
#include "strategies/rung_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "support/catch.h"

namespace moert {
namespace {

constexpr int kVersions = 4;
const std::vector<int64_t> kBytes = {80, 40, 30, 20};

struct Instance {
  std::vector<double> loss;
  std::vector<int64_t> bytes;
  std::vector<UseBand> uses;
  std::vector<uint8_t> lowest;

  Instance(int experts, uint64_t seed) : lowest(static_cast<size_t>(experts), 0) {
    std::mt19937_64 rng(seed);
    std::lognormal_distribution<double> many(0, 1);
    for (int e = 0; e < experts; ++e) {
      const double scale = many(rng), use = many(rng);
      uses.push_back({use, use});
      // Not always the less the more bytes, and not always on a hull.
      for (const double part : {0.01, 0.1, 0.3, 1.0}) loss.push_back(scale * part * many(rng));
      bytes.insert(bytes.end(), kBytes.begin(), kBytes.end());
    }
  }
  RungChoice Choice() const { return RungChoice(loss, bytes, kVersions); }
  size_t At(size_t expert, int rung) const {
    return expert * kVersions + static_cast<size_t>(kVersions - 1 - rung);
  }
  double Loss(const std::vector<uint8_t>& rungs) const {
    double sum = 0;
    for (size_t i = 0; i < rungs.size(); ++i) sum += uses[i].least * loss[At(i, rungs[i])];
    return sum;
  }
  int64_t Bytes(const std::vector<uint8_t>& rungs) const {
    int64_t sum = 0;
    for (size_t i = 0; i < rungs.size(); ++i) sum += bytes[At(i, rungs[i])];
    return sum;
  }
  /// The choice within `capacity` that loses least.
  double Least(int64_t capacity) const {
    std::vector<uint8_t> rungs(uses.size(), 0);
    double least = Loss(rungs);
    for (size_t i = 0; i < rungs.size();) {
      if (++rungs[i] == kVersions) {
        rungs[i++] = 0;
        continue;
      }
      i = 0;
      if (Bytes(rungs) <= capacity) least = std::min(least, Loss(rungs));
    }
    return least;
  }
};

TEST_CASE("the choice fits, and is as good as any but for one step") {
  double sum = 0, best = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Instance instance(6, seed);
    const RungChoice choice = instance.Choice();
    for (const int64_t capacity : {120, 160, 200, 260, 400, 480}) {
      INFO("seed " << seed << " capacity " << capacity);
      const auto rungs = choice.Choose(instance.uses, instance.lowest, capacity);
      REQUIRE(instance.Bytes(rungs) <= capacity);
      const double least = instance.Least(capacity);
      // With the bytes of one more step nothing would be better.
      REQUIRE(instance.Loss(choice.Choose(instance.uses, instance.lowest, capacity + 60)) <=
              least + 1e-9);
      sum += instance.Loss(rungs);
      best += least;
    }
  }
  CHECK(sum < 1.05 * best);
}

TEST_CASE("where an expert is matters only as far as its use is in doubt") {
  Instance instance(40, 7);
  const RungChoice choice = instance.Choice();
  constexpr int64_t kCapacity = 40 * 35;
  const auto settled = choice.Choose(instance.uses, instance.lowest, kCapacity);
  CHECK(choice.Choose(instance.uses, settled, kCapacity) == settled);
  const std::vector<uint8_t> highest(40, kVersions - 1);
  const double loss = instance.Loss(settled);
  CHECK(instance.Loss(choice.Choose(instance.uses, highest, kCapacity)) ==
        Approx(loss).epsilon(0.02));

  // Uses that differ by a tenth: the choice anew moves some, that with a doubt of a tenth nobody.
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<double> factor(0.95, 1.05);
  int anew = 0, doubted = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<UseBand> sure, band;
    for (const UseBand& use : instance.uses) {
      const double now = use.least * factor(rng);
      sure.push_back({now, now});
      band.push_back({now * 0.8, now * 1.2});
    }
    const auto moves = [&](const std::vector<UseBand>& uses) {
      const auto rungs = choice.Choose(uses, settled, kCapacity);
      REQUIRE(instance.Bytes(rungs) <= kCapacity);
      return std::inner_product(rungs.begin(), rungs.end(), settled.begin(), 0, std::plus<>(),
                                std::not_equal_to<>());
    };
    anew += moves(sure);
    doubted += moves(band);
  }
  CHECK(anew > 20);
  CHECK(doubted < anew / 4);
}

TEST_CASE("fewer bytes move those that lose least by it, and unused experts have the fewest") {
  Instance instance(12, 5);
  instance.uses[3] = {0, 0};
  const RungChoice choice = instance.Choice();
  std::vector<uint8_t> rungs = instance.lowest;
  double before = 0;
  for (int64_t capacity = 12 * 80; capacity >= 12 * 20; capacity -= 60) {
    rungs = choice.Choose(instance.uses, rungs, capacity);
    REQUIRE(instance.Bytes(rungs) <= capacity);
    CHECK(rungs[3] == 0);
    const double loss = instance.Loss(rungs);
    CHECK(loss >= before - 1e-12);
    before = loss;
  }
  CHECK(instance.Bytes(rungs) == 12 * 20);
}

}  // namespace
}  // namespace moert
