// The solvers against trying everything, and against each other.
#include "offline/allocate/multiple_choice.h"

#include <cmath>
#include <limits>
#include <random>

#include "offline/allocate/product.h"
#include "support/catch.h"

namespace moert {
namespace {

ProductProblem Random(uint32_t seed, int items, int options, double r) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  ProductProblem p;
  p.r = r;
  int64_t least = 0, most = 0;
  for (int i = 0; i < items; ++i) {
    const double importance = std::exp(3 * uniform(rng));
    auto& item = p.items.emplace_back();
    int64_t low = INT64_MAX, high = 0;
    for (int k = 0; k < options; ++k) {
      const double bits = 2 + 6 * uniform(rng);
      ProductProblem::Option o;
      o.bytes = static_cast<int64_t>(1000 * bits);
      o.loss = importance * std::exp2(-bits) * (0.8 + 0.4 * uniform(rng));
      o.time = bits * (0.5 + uniform(rng));
      low = std::min(low, o.bytes);
      high = std::max(high, o.bytes);
      item.push_back(o);
    }
    least += low;
    most += high;
  }
  p.capacity = least + (most - least) / 3;
  return p;
}

ChoiceProblem LossOnly(const ProductProblem& p) {
  ChoiceProblem c;
  c.capacity = p.capacity;
  for (const auto& item : p.items) {
    auto& to = c.items.emplace_back();
    for (const auto& o : item) to.push_back({o.loss, o.bytes});
  }
  return c;
}

// The least objective of all feasible choices.
double BruteForce(const ProductProblem& p) {
  std::vector<size_t> choice(p.items.size(), 0);
  double best = std::numeric_limits<double>::infinity();
  for (;;) {
    double loss = 0, time = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < choice.size(); ++i) {
      loss += p.items[i][choice[i]].loss;
      time += p.items[i][choice[i]].time;
      bytes += p.items[i][choice[i]].bytes;
    }
    if (bytes <= p.capacity) {
      best = std::min(best, std::pow(loss, p.r) * std::pow(time, 1 - p.r));
    }
    size_t i = 0;
    while (i < choice.size() && ++choice[i] == p.items[i].size()) choice[i++] = 0;
    if (i == choice.size()) return best;
  }
}

void CheckFeasible(const ChoiceProblem& p, const ChoiceSolution& s) {
  REQUIRE(s.choice.size() == p.items.size());
  double cost = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < p.items.size(); ++i) {
    const auto& option = p.items[i].at(static_cast<size_t>(s.choice[i]));
    cost += option.cost;
    bytes += option.bytes;
  }
  CHECK(bytes == s.bytes);
  CHECK(bytes <= p.capacity);
  CHECK(cost == Approx(s.cost));
  CHECK(s.bound <= s.cost);
}

TEST_CASE("small problems against trying everything") {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const ProductProblem p = Random(seed, 6, 5, 1);
    const ChoiceProblem c = LossOnly(p);
    const double best = BruteForce(p);
    const auto relaxed = SolveByRelaxation(c);
    REQUIRE_OK(relaxed.status());
    CheckFeasible(c, *relaxed);
    INFO("seed " << seed);
    CHECK(relaxed->bound <= best * (1 + 1e-12));
    CHECK(relaxed->cost >= best * (1 - 1e-12));
    if (!HaveMilp()) continue;
    const auto exact = SolveByMilp(c, {.gap = 0});
    REQUIRE_OK(exact.status());
    CheckFeasible(c, *exact);
    CHECK(exact->cost == Approx(best).epsilon(1e-9));
    CHECK(exact->bound <= best * (1 + 1e-9));
  }
}

TEST_CASE("the product of loss and time: within its gap of the best") {
  const ChoiceSolver solver = [](const ChoiceProblem& c) {
    return HaveMilp() ? SolveByMilp(c, {.gap = 0}) : SolveByRelaxation(c);
  };
  double total_gap = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const double r : {0.0, 0.25, 0.75, 1.0}) {
      const ProductProblem p = Random(seed, 6, 4, r);
      const double best = BruteForce(p);
      const auto s = MinimizeProduct(p, solver);
      REQUIRE_OK(s.status());
      const double got = std::pow(s->loss, r) * std::pow(s->time, 1 - r);
      INFO("seed " << seed << " r " << r << " gap " << s->gap);
      CHECK(s->bytes <= p.capacity);
      CHECK(got >= best * (1 - 1e-9));
      CHECK(got * (1 - s->gap) <= best * (1 + 1e-9));  // the bound is one
      // Rounding a relaxation may misplace a large part of six items.
      CHECK(got <= best * (HaveMilp() ? 1.1 : 1.3));
      total_gap += s->gap;
    }
  }
  CHECK(total_gap / 80 < 0.12);  // six items: steps are coarse
}

TEST_CASE("a capacity below the smallest choice, and one that holds everything") {
  ProductProblem p = Random(1, 5, 4, 1);
  ChoiceProblem c = LossOnly(p);
  c.capacity = 10;
  const auto none = SolveByRelaxation(c);
  REQUIRE(none.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(none.status().message()).find("the smallest takes") != std::string::npos);
  c.capacity = int64_t{1} << 40;
  const auto all = SolveByRelaxation(c);
  REQUIRE_OK(all.status());
  CHECK(all->cost == Approx(all->bound));
  if (HaveMilp()) {
    const auto exact = SolveByMilp(c);
    REQUIRE_OK(exact.status());
    CHECK(exact->cost == Approx(all->cost));
  }
}

TEST_CASE("48 layers of 128 experts with two blocks and eight schemes") {
  const ProductProblem p = Random(7, 48 * 128 * 2, 8, 0.75);
  const ChoiceProblem c = LossOnly(p);
  const auto relaxed = SolveByRelaxation(c);
  REQUIRE_OK(relaxed.status());
  CheckFeasible(c, *relaxed);
  CHECK((relaxed->cost - relaxed->bound) / relaxed->cost < 1e-4);
  if (HaveMilp()) {
    const auto exact = SolveByMilp(c, {.gap = 1e-6, .seconds = 60});
    REQUIRE_OK(exact.status());
    CheckFeasible(c, *exact);
    CHECK(exact->cost <= relaxed->cost);
    CHECK(exact->cost >= relaxed->bound * (1 - 1e-9));
  }
  const auto product = MinimizeProduct(p, SolveByRelaxation);
  REQUIRE_OK(product.status());
  CHECK(product->gap < 1e-3);
}

TEST_CASE("a hundred thousand blocks") {
  const ProductProblem p = Random(11, 100000, 8, 1);
  const ChoiceProblem c = LossOnly(p);
  const auto relaxed = SolveByRelaxation(c);
  REQUIRE_OK(relaxed.status());
  CheckFeasible(c, *relaxed);
  CHECK((relaxed->cost - relaxed->bound) / relaxed->cost < 1e-5);
  if (HaveMilp()) {
    const auto exact = SolveByMilp(c, {.gap = 1e-6, .seconds = 60});
    REQUIRE_OK(exact.status());
    CheckFeasible(c, *exact);
    CHECK(exact->cost <= relaxed->cost * (1 + 1e-12));
    CHECK(exact->cost >= relaxed->bound * (1 - 1e-9));
  }
}

}  // namespace
}  // namespace moert
