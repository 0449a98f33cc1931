// Algorithm 1 of the importance paper against a plain transcription, over all small cases, and its
// properties.
#include "route/expert_cache_rule.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/expert_cache_cases.h"

namespace moert::test {
namespace {

TEST_CASE("one token: all scores on a grid, all residencies") {
  int64_t cases = 0, substituted = 0;
  ForOneToken([&](const Call& call, const RoutingRule& rule, bool all_resident) {
    const Answer a = Apply(call, rule);
    const std::string broken = Differs(call, rule, a);
    ++cases;
    substituted += a.outcome.substituted;
    if (!broken.empty()) FAIL(broken << ": k " << call.spec.top_k << " " << Show(call, rule));
    if ((rule.alpha == 0 || all_resident) && a.ids != a.model) FAIL("must be plain top-k");
  });
  CHECK(cases == 3 * 1024 * 32 * 4);
  CHECK(substituted > cases / 10);
}

TEST_CASE("two tokens: all pairs of score rows on a grid, all residencies, both passes") {
  int64_t substituted[2] = {0, 0}, fetched[2] = {0, 0}, fetched_by_model = 0;
  ForTwoTokens([&](const Call& call, const RoutingRule& rule) {
    const Answer a = Apply(call, rule);
    const std::string broken = Differs(call, rule, a);
    if (!broken.empty()) FAIL(broken << ": " << Show(call, rule));
    substituted[rule.second_pass] += a.outcome.substituted;
    fetched[rule.second_pass] += static_cast<int64_t>(Fetched(call, a.ids).size());
    if (!rule.second_pass) fetched_by_model += static_cast<int64_t>(Fetched(call, a.model).size());
  });
  // Each pass is worth something.
  CHECK(substituted[1] > substituted[0]);
  CHECK(fetched[0] < fetched_by_model);
  CHECK(fetched[1] < fetched[0]);
}

TEST_CASE("random batches over every routing kind that has scores") {
  int64_t substituted = 0;
  ForRandomBatches(20000, [&](const Call& call, const RoutingRule& rule) {
    const Answer a = Apply(call, rule);
    const std::string broken = Differs(call, rule, a);
    if (!broken.empty()) FAIL(broken << ": " << Show(call, rule));
    substituted += a.outcome.substituted;
  });
  CHECK(substituted > 5000);
}

TEST_CASE("the paper's example of the second pass: {1,2,4} {1,5,4} {2,6,7} becomes {2,4,7}") {
  Call call;
  call.spec.top_k = 3;
  call.experts = 8;
  call.resident.assign(8, 0);
  // Expert 4 is low-score for tokens 1 and 2 and inactive, in the band, for token 3.
  call.scores = {{.01f, .30f, .30f, .08f, .10f, .01f, .01f, .01f},
                 {.01f, .30f, .01f, .08f, .10f, .30f, .01f, .01f},
                 {.01f, .01f, .30f, .01f, .09f, .01f, .10f, .30f}};
  const Answer first = Apply(call, Rule(0.3f, false));
  CHECK(first.ids == first.model);
  const Answer a = Apply(call, Rule(0.3f, true));
  CHECK(std::set<int32_t>(a.ids[2].begin(), a.ids[2].end()) == std::set<int32_t>{2, 4, 7});
  CHECK(a.ids[0] == a.model[0]);
  CHECK(a.ids[1] == a.model[1]);
  CHECK(a.outcome.substituted == 1);
}

TEST_CASE("weights of substitutes: the own score, or what the displaced had") {
  Call call;
  call.spec.top_k = 2;
  call.experts = 4;
  call.resident = {0, 0, 1, 0};
  call.scores = {{.5f, .2f, .18f, .12f}};
  RoutingRule rule = Rule(0.3f);
  Answer a = Apply(call, rule);
  CHECK(a.ids[0] == Ids{0, 2});
  CHECK(a.weights[0] == std::vector<float>{.5f, .18f});
  CHECK(a.outcome.mass_substituted == Approx(.2));

  call.spec.renormalize = true;
  call.spec.scaling = 2;
  a = Apply(call, rule);
  CHECK(a.weights[0][0] == Approx(2 * .5 / .68));
  CHECK(a.weights[0][1] == Approx(2 * .18 / .68));

  rule.own_score_weights = false;
  a = Apply(call, rule);
  CHECK(a.ids[0] == Ids{0, 2});
  CHECK(a.weights[0] == a.model_weights[0]);
}

TEST_CASE("a substitute sits in the slot of whom it displaces, the best with the best") {
  Call call;
  call.spec.top_k = 3;
  call.experts = 6;
  call.scores = {{.30f, .21f, .20f, .19f, .18f, .17f}};
  call.resident = {1, 0, 0, 0, 1, 1};
  CHECK(Apply(call, Rule(0.3f)).ids[0] == Ids{0, 4, 5});
  call.resident = {1, 0, 0, 0, 0, 1};  // one substitute: the worst active makes way
  CHECK(Apply(call, Rule(0.3f)).ids[0] == Ids{0, 1, 5});
}

TEST_CASE("as many experts as are eligible: nothing is replaced and all are top-score") {
  Call call;
  call.spec.top_k = 3;
  call.experts = 3;
  call.scores = {{.5f, .3f, .2f}};
  call.resident = {0, 0, 0};
  const Answer a = Apply(call, Rule(0.6f));
  CHECK(a.ids == a.model);
  CHECK(a.outcome.top_score == std::vector<uint8_t>{1, 1, 1});
}

TEST_CASE("the caps hold for every request at every moment") {
  std::mt19937 rng(6);
  for (const bool by_slots : {true, false}) {
    for (const float cap : {0.0f, 0.05f, 0.2f, 0.5f}) {
      SubstitutionLedger ledger;
      RoutingRule rule = Rule(0.6f, true);
      (by_slots ? rule.max_slot_share : rule.max_mass_share) = cap;
      std::map<int64_t, std::array<double, 4>> audit;  // slots, substituted, mass, substituted
      int64_t total = 0;
      for (int step = 0; step < 400; ++step) {
        Call call;
        call.spec.top_k = 4;
        call.experts = 12;
        Residency(&call, static_cast<int>(rng() % 4096));
        std::uniform_real_distribution<float> uniform(0.2f, 1.0f);
        for (int64_t r = 0; r < 5; ++r) {
          if (rng() % 3 == 0) continue;
          call.requests.push_back(r * 1000);
          call.scores.emplace_back();
          for (int e = 0; e < 12; ++e) call.scores.back().push_back(uniform(rng));
        }
        if (call.scores.empty()) continue;
        const Answer a = Apply(call, rule, &ledger);
        REQUIRE(Broken(call, rule, a) == "");
        total += a.outcome.substituted;
        for (size_t t = 0; t < call.scores.size(); ++t) {
          auto& account = audit[call.requests[t]];
          for (size_t j = 0; j < 4; ++j) {
            const bool changed = a.ids[t][j] != a.model[t][j];
            account[0] += 1;
            account[1] += changed;
            account[2] += a.model_weights[t][j];
            account[3] += changed ? a.model_weights[t][j] : 0;
          }
        }
        for (const auto& [request, account] : audit) {
          const double share = by_slots ? account[1] / account[0] : account[3] / account[2];
          REQUIRE(share <= cap * (1 + 1e-6));
        }
      }
      const double worst = by_slots ? ledger.worst_slot_share() : ledger.worst_mass_share();
      CHECK(worst <= cap * (1 + 1e-6));
      if (cap == 0) {
        CHECK(total == 0);
      } else {
        // A cap is used, not only kept.
        for (const auto& [request, account] : audit) {
          CHECK((by_slots ? account[1] / account[0] : account[3] / account[2]) > 0.7 * cap);
        }
      }
    }
  }
}

TEST_CASE("the ledger forgets the oldest requests and keeps the caps over them") {
  SubstitutionLedger ledger(8);
  for (int64_t id = 0; id < 100; ++id) {
    const std::vector<int64_t> ids = {id, 1000};
    ledger.BeginCall(ids);
    ledger.Of(1000).slots += 1;
    ledger.EndCall(ids);
    REQUIRE(ledger.size() <= 9);
  }
  CHECK(ledger.Of(1000).slots == 100);  // in use all the time
  CHECK(ledger.Of(0).slots == 0);
  CHECK(ledger.anonymous().slots == 0);
}

TEST_CASE("rows without request ids share one account") {
  SubstitutionLedger ledger;
  Call call;
  call.spec.top_k = 2;
  call.experts = 4;
  call.resident = {0, 0, 1, 0};
  call.scores = {{.5f, .2f, .18f, .12f}};
  RoutingRule rule = Rule(0.3f);
  rule.max_slot_share = 0.2f;
  int64_t substituted = 0;
  for (int i = 0; i < 10; ++i) substituted += Apply(call, rule, &ledger).outcome.substituted;
  CHECK(substituted == 4);
  CHECK(ledger.anonymous().slots == 20);
}

TEST_CASE("sparsemixer, missing scores and a wild alpha are refused") {
  Call call;
  call.spec = {RoutingKind::kSparseMixer, 2};
  const absl::Status status = CheckExpertCacheRule(call.spec);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("sparsemixer") && Catch::Contains("softmax_topk"));
  Ids ids = {0, 1};
  std::vector<float> weights = {.5f, .5f};
  const std::vector<uint8_t> resident(4, 0);
  SubstitutionLedger ledger;
  ExpertCacheOutcome outcome;
  RoutingSpec spec;
  spec.top_k = 2;
  const std::vector<float> scores = {.4f, .3f, .2f, .1f};
  ExpertCacheCall raw{
      &spec, 4, 1, {}, {}, resident, {}, absl::MakeSpan(ids), absl::MakeSpan(weights)};
  CHECK_THAT(std::string(ApplyExpertCacheRule(Rule(.3f), raw, &ledger, &outcome).message()),
             Catch::Contains("scores of all experts"));
  raw.scores = scores;
  CHECK(ApplyExpertCacheRule(Rule(.3f), raw, &ledger, &outcome).ok());
  CHECK_THAT(std::string(ApplyExpertCacheRule(Rule(1.5f), raw, &ledger, &outcome).message()),
             Catch::Contains("alpha = 1.5"));
}

}  // namespace
}  // namespace moert::test
