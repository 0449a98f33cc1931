// What may be answered low is bounded for every request by itself.
#include "plan/low_answers.h"

#include "tests/support/catch.h"

namespace moert {
namespace {

RoutingResult Routing(std::vector<int32_t> ids, std::vector<float> weights, int top_k) {
  RoutingResult routing;
  routing.tokens = static_cast<int64_t>(ids.size()) / top_k;
  routing.top_k = top_k;
  routing.num_experts = 4;
  routing.ids = std::move(ids);
  routing.weights = std::move(weights);
  return routing;
}

TEST_CASE("a request's share is never passed, and its calls add up") {
  LowAnswers low(0.125);
  const RoutingResult routing = Routing({0, 1}, {.9375f, .0625f}, 2);
  low.Begin(routing, {});
  CHECK(low.Cost(1) == Approx(0.5));
  CHECK(low.Cost(0) > 1);
  CHECK(!low.Take(0));
  CHECK(low.Take(1));
  CHECK(low.Take(1));
  CHECK(low.Cost(1) > 1);
  CHECK(!low.Take(1));
  low.End();
  CHECK(low.worst_share() == Approx(0.125));
  low.Begin(routing, {});  // as much again may be lost
  CHECK(low.Take(1));
  CHECK(low.Take(1));
  CHECK(!low.Take(1));
  low.End();
  CHECK(low.worst_share() == Approx(0.125));
}

TEST_CASE("an expert of several requests asks all of them") {
  LowAnswers low(0.5);
  const std::vector<int64_t> requests = {7, 9};
  const RoutingResult routing = Routing({0, 1, 0, 1}, {.9f, .1f, .3f, .7f}, 2);
  low.Begin(routing, requests);
  CHECK(low.Cost(0) == Approx(1.8));  // request 7 has too much of it
  CHECK(!low.Take(0));
  CHECK(low.Cost(1) == Approx(1.4));  // request 9 has
  CHECK(!low.Take(1));
  low.End();
  CHECK(low.worst_share() == 0);
}

}  // namespace
}  // namespace moert
