// Low answers are bounded for every request by itself; a device decides as the host.
#include <algorithm>
#include <random>

#include "kernels/cuda/cache/serve_misses.h"
#include "plan/layer_planner.h"
#include "route/grouping.h"
#include "support/served_call.h"
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

constexpr int kExperts = 16, kTopK = 4;

/// A device's part of a call (kernels/cuda/cache/answer_low.cuh), a thread after the other.
std::vector<uint8_t> AnswerLow(const RoutingResult& routing, const LowCall& call,
                               const std::vector<uint8_t>& missing, double patience) {
  // Rows in no order: the threads' own.
  for (int64_t row = routing.tokens; row-- > 0;) call.EnterAccountOf(row, routing.tokens);
  std::vector<int> first(kExperts, 0);
  for (int e = 1; e < kExperts; ++e) first[e] = first[e - 1] + routing.counts[e - 1];
  std::vector<int32_t> asked(kExperts, 0), order(kExperts, -1);
  int count = 0;
  for (int e = 0; e < kExperts; ++e) {
    if (missing[e] == 0 || routing.counts[e] == 0) continue;
    const int32_t* slots = routing.grouped_slots.data() + first[e];
    if (!WorthAnsweringLow(call.Cost(slots, routing.counts[e]), patience)) continue;
    asked[e] = routing.counts[e];
    ++count;
  }
  const std::vector<int> ranks = test::MissRanks(asked);
  for (int e = 0; e < kExperts; ++e) {
    if (asked[e] > 0) order[ranks[e]] = e;
  }
  std::vector<uint8_t> low(kExperts, 0);
  for (int i = 0; i < count; ++i) {
    const int e = order[i];
    low[e] = call.Take(routing.grouped_slots.data() + first[e], routing.counts[e]) ? 1 : 0;
  }
  return low;
}

/// The same by the planner's way: costs first, then in the order in which misses are loaded.
std::vector<uint8_t> AnswerLow(const RoutingResult& routing, LowAnswers* answers,
                               const std::vector<uint8_t>& missing, double patience) {
  std::vector<int32_t> misses;
  for (int32_t e = 0; e < kExperts; ++e) {
    if (missing[e] != 0 && routing.counts[e] > 0) misses.push_back(e);
  }
  std::stable_sort(misses.begin(), misses.end(),
                   [&](int32_t a, int32_t b) { return routing.counts[a] > routing.counts[b]; });
  std::vector<uint8_t> wanted, low(kExperts, 0);
  for (const int32_t e : misses) {
    wanted.push_back(patience * static_cast<double>(answers->Cost(e)) <= 1 ? 1 : 0);
  }
  for (size_t i = 0; i < misses.size(); ++i) {
    if (wanted[i] != 0) low[misses[i]] = answers->Take(misses[i]) ? 1 : 0;
  }
  return low;
}

RoutingResult RandomCall(int64_t tokens, std::mt19937* rng) {
  RoutingResult routing;
  routing.tokens = tokens;
  routing.top_k = kTopK;
  routing.num_experts = kExperts;
  std::vector<int32_t> experts(kExperts);
  for (int e = 0; e < kExperts; ++e) experts[e] = e;
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), *rng);
    for (int i = 0; i < kTopK; ++i) {
      routing.ids.push_back((*rng)() % 20 == 0 ? -1 : experts[i]);
      const float weight = static_cast<float>((*rng)() % 1000 + 1) / 1000;
      routing.weights.push_back(weight * weight * weight);
    }
  }
  GroupByExpert(&routing);
  return routing;
}

TEST_CASE("a device answers the same misses low, and its accounts have the same bits") {
  std::mt19937 rng(7);
  constexpr int kRequests = 5;
  for (const double share : {0.01, 0.05, 0.3}) {
    LowAnswers host(share);
    std::vector<LowAccount> accounts(kRequests + 1);  // 0: of rows that nobody names
    int64_t answered = 0, different = 0;
    double worst = 0;
    for (int c = 0; c < 4000; ++c) {
      const int64_t tokens = 1 + static_cast<int64_t>(rng() % 8);
      const RoutingResult routing = RandomCall(tokens, &rng);
      std::vector<int64_t> requests;
      std::vector<int32_t> account_of(static_cast<size_t>(tokens), 0);
      for (int64_t t = 0; c % 6 != 0 && t < tokens; ++t) {
        const auto number = static_cast<int32_t>(rng() % kRequests);
        requests.push_back(1000 - number);
        account_of[static_cast<size_t>(t)] = number + 1;
      }
      std::vector<uint8_t> missing(kExperts);
      for (uint8_t& m : missing) m = rng() % 3 == 0 ? 1 : 0;
      const double patience = 1 + static_cast<double>(rng() % 16);
      const LowCall call = {routing.ids.data(),
                            routing.weights.data(),
                            accounts.data(),
                            account_of.data(),
                            kTopK,
                            share};
      const std::vector<uint8_t> device = AnswerLow(routing, call, missing, patience);
      host.Begin(routing, requests);
      different += AnswerLow(routing, &host, missing, patience) != device ? 1 : 0;
      host.End();
      answered += std::count(device.begin(), device.end(), 1);
      for (const LowAccount& account : accounts) {
        CHECK(account.low <= share * account.mass * (1 + 1e-6));
        worst = std::max(worst, account.Share());
      }
    }
    CHECK(different == 0);
    CHECK(answered > 100);
    CHECK(worst == host.worst_share());
  }
}

}  // namespace
}  // namespace moert
