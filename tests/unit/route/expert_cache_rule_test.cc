// Algorithm 1 of the importance paper against a plain transcription, over all small cases, and its
// properties.
#include "route/expert_cache_rule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "moert/router.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

using Ids = std::vector<int32_t>;

/// A call with every array owned. Scores are given; ids and weights are the model's.
struct Call {
  RoutingSpec spec;
  int experts = 0;
  std::vector<std::vector<float>> scores;  // [T][E]
  std::vector<float> bias;
  std::vector<uint8_t> resident;
  std::vector<int64_t> requests;
  std::vector<float> gate;  // [experts, hidden] or empty

  std::vector<std::vector<float>> Keys() const {
    std::vector<std::vector<float>> keys = scores;
    for (auto& row : keys) {
      for (int e = 0; e < experts; ++e) row[e] += bias.empty() ? 0 : bias[e];
    }
    return keys;
  }
};

/// Whether a group-limited selection leaves an expert eligible, from the definition.
std::vector<bool> Eligible(const Call& call, const std::vector<float>& keys) {
  const int size = call.experts / call.spec.num_groups;
  std::vector<std::pair<float, int>> groups;  // (-score, index): ascending is best first
  for (int g = 0; g < call.spec.num_groups; ++g) {
    std::vector<float> in(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::sort(in.rbegin(), in.rend());
    const bool two = call.spec.kind == RoutingKind::kSigmoidGrouped && size > 1;
    groups.push_back({-(two ? in[0] + in[1] : in[0]), g});
  }
  std::sort(groups.begin(), groups.end());
  std::vector<bool> eligible(call.experts, false);
  for (int i = 0; i < call.spec.top_groups; ++i) {
    for (int e = 0; e < size; ++e) eligible[groups[i].second * size + e] = true;
  }
  return eligible;
}

/// Experts in `of`, best value first, lower index first among equals.
Ids Ranked(const std::vector<float>& value, const std::vector<bool>& of) {
  Ids ids;
  for (int e = 0; e < static_cast<int>(value.size()); ++e) {
    if (of[e]) ids.push_back(e);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return value[a] > value[b]; });
  return ids;
}

Ids ModelChoice(const Call& call, size_t t) {
  const std::vector<float> keys = call.Keys()[t];
  Ids ids = Ranked(keys, Eligible(call, keys));
  ids.resize(call.spec.top_k);
  return ids;
}

std::vector<float> ModelWeights(const Call& call, size_t t, const Ids& ids) {
  std::vector<float> w;
  for (const int32_t e : ids) w.push_back(call.scores[t][e]);
  if (call.spec.renormalize || call.spec.kind == RoutingKind::kTopKSoftmax) {
    const float sum = std::accumulate(w.begin(), w.end(), 0.0f) + 1e-20f;
    for (float& v : w) v /= sum;
  }
  for (float& v : w) v *= call.spec.scaling;
  return w;
}

/// papers' Algorithm 1, prose reading, in sets. E[t] as sets of experts.
std::vector<std::set<int32_t>> Transcription(const Call& call, float alpha, bool second_pass) {
  const size_t tokens = call.scores.size();
  const int k = call.spec.top_k;
  std::vector<std::set<int32_t>> active(tokens), kept(tokens);
  std::vector<std::optional<float>> beta(tokens);
  std::vector<std::vector<bool>> eligible(tokens);
  std::set<int32_t> c;
  for (size_t t = 0; t < tokens; ++t) {
    const Ids choice = ModelChoice(call, t);
    active[t] = {choice.begin(), choice.end()};
    eligible[t] = Eligible(call, call.Keys()[t]);
    const Ids ranks = Ranked(call.scores[t], eligible[t]);
    if (static_cast<int>(ranks.size()) > k) beta[t] = call.scores[t][ranks[k]];
    for (const int32_t e : choice) {
      if (!beta[t] || call.scores[t][e] > (1 + alpha) * *beta[t]) c.insert(e);
    }
  }
  if (alpha == 0) return active;
  const auto at_hand = [&](int32_t e) { return call.resident[e] != 0 || c.count(e) != 0; };
  std::vector<Ids> left(tokens);  // B after the first pass, worst first
  std::vector<std::set<int32_t>> result(tokens);
  for (size_t t = 0; t < tokens; ++t) {
    const std::vector<float>& s = call.scores[t];
    Ids b, a;
    // The model's own order decides between equal scores of actives.
    const Ids choice = ModelChoice(call, t);
    for (const int32_t e : choice) {
      if (at_hand(e) || !beta[t] || s[e] > (1 + alpha) * *beta[t]) {
        result[t].insert(e);
      } else {
        b.push_back(e);
      }
    }
    std::stable_sort(b.begin(), b.end(), [&](int x, int y) { return s[x] > s[y]; });
    for (int32_t e = 0; beta[t] && e < call.experts; ++e) {
      if (active[t].count(e) || !eligible[t][e] || !at_hand(e)) continue;
      if (s[e] >= (1 - alpha) * *beta[t] && s[e] <= *beta[t]) a.push_back(e);
    }
    std::stable_sort(a.begin(), a.end(), [&](int x, int y) { return s[x] > s[y]; });
    if (a.size() >= b.size()) {
      result[t].insert(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(b.size()));
    } else {
      result[t].insert(a.begin(), a.end());
      const Ids best(b.begin(), b.end() - static_cast<std::ptrdiff_t>(a.size()));
      result[t].insert(best.begin(), best.end());
      left[t].assign(best.rbegin(), best.rend());
    }
  }
  if (!second_pass) return result;
  std::set<int32_t> anchored;
  const auto users = [&](int32_t e) {
    return std::count_if(result.begin(), result.end(),
                         [&](const std::set<int32_t>& r) { return r.count(e) != 0; });
  };
  for (size_t t = 0; t < tokens; ++t) {
    for (const int32_t x : left[t]) {
      if (anchored.count(x)) continue;
      int32_t best = -1;
      for (int32_t y = 0; y < call.experts; ++y) {
        const float s = call.scores[t][y];
        if (active[t].count(y) || result[t].count(y) || !eligible[t][y] || at_hand(y)) continue;
        if (!(s >= (1 - alpha) * *beta[t] && s <= *beta[t])) continue;
        if (users(y) == 0 || users(y) < users(x)) continue;
        if (best < 0 || users(y) > users(best) ||
            (users(y) == users(best) && s > call.scores[t][best])) {
          best = y;
        }
      }
      if (best < 0) continue;
      result[t].erase(x);
      result[t].insert(best);
      anchored.insert(best);
    }
  }
  return result;
}

struct Answer {
  std::vector<Ids> model, ids;
  std::vector<std::vector<float>> model_weights, weights;
  ExpertCacheOutcome outcome;
};

Answer Apply(const Call& call, const RoutingRule& rule, SubstitutionLedger* ledger) {
  Answer a;
  Ids ids;
  std::vector<float> weights, scores;
  for (size_t t = 0; t < call.scores.size(); ++t) {
    a.model.push_back(ModelChoice(call, t));
    a.model_weights.push_back(ModelWeights(call, t, a.model.back()));
    ids.insert(ids.end(), a.model.back().begin(), a.model.back().end());
    weights.insert(weights.end(), a.model_weights.back().begin(), a.model_weights.back().end());
    scores.insert(scores.end(), call.scores[t].begin(), call.scores[t].end());
  }
  const absl::Status status = ApplyExpertCacheRule(
      rule,
      {&call.spec, call.experts, static_cast<int64_t>(call.scores.size()), scores, call.bias,
       call.resident, call.requests, absl::MakeSpan(ids), absl::MakeSpan(weights), call.gate},
      ledger, &a.outcome);
  REQUIRE_OK(status);
  const int k = call.spec.top_k;
  for (size_t t = 0; t < call.scores.size(); ++t) {
    a.ids.emplace_back(ids.begin() + t * k, ids.begin() + (t + 1) * k);
    a.weights.emplace_back(weights.begin() + t * k, weights.begin() + (t + 1) * k);
  }
  return a;
}

Answer Apply(const Call& call, const RoutingRule& rule) {
  SubstitutionLedger ledger;
  return Apply(call, rule, &ledger);
}

RoutingRule Rule(float alpha, bool second_pass = false) {
  RoutingRule rule;
  rule.kind = RoutingRuleKind::kExpertCache;
  rule.alpha = alpha;
  rule.second_pass = second_pass;
  return rule;
}

std::set<int32_t> Fetched(const Call& call, const std::vector<Ids>& ids) {
  std::set<int32_t> fetched;
  for (const Ids& row : ids) {
    for (const int32_t e : row) {
      if (!call.resident[e]) fetched.insert(e);
    }
  }
  return fetched;
}

/// Everything the rule promises of one answer. Plain ifs: this runs millions of times.
std::string Broken(const Call& call, const RoutingRule& rule, const Answer& a) {
  int64_t changed = 0;
  double mass = 0;
  std::map<int32_t, int> own_users;  // by tokens that the model gave it to
  for (size_t t = 0; t < a.ids.size(); ++t) {
    for (const int32_t e : a.ids[t]) {
      if (std::count(a.model[t].begin(), a.model[t].end(), e)) ++own_users[e];
    }
  }
  for (size_t t = 0; t < a.ids.size(); ++t) {
    const std::vector<float>& s = call.scores[t];
    const std::set<int32_t> model(a.model[t].begin(), a.model[t].end());
    const std::set<int32_t> now(a.ids[t].begin(), a.ids[t].end());
    if (now.size() != a.ids[t].size()) return "not k distinct experts";
    const Ids ranks = Ranked(s, Eligible(call, call.Keys()[t]));
    if (static_cast<int>(ranks.size()) <= call.spec.top_k) {
      if (a.ids[t] != a.model[t]) return "changed without a rank k + 1";
      continue;
    }
    const float beta = s[ranks[call.spec.top_k]];
    for (size_t j = 0; j < a.ids[t].size(); ++j) {
      const int32_t was = a.model[t][j], is = a.ids[t][j];
      if (was == is) continue;
      ++changed;
      mass += a.model_weights[t][j];
      if (s[was] > (1 + rule.alpha) * beta) return "a top-score expert was replaced";
      if (call.resident[was]) return "a resident expert was replaced";
      if (a.outcome.top_score[was]) return "an expert of C was replaced";
      if (model.count(is)) return "a substitute is an active";
      if (s[is] > beta || s[is] < (1 - rule.alpha) * beta) return "a substitute is out of the band";
      const bool at_hand = call.resident[is] || a.outcome.top_score[is];
      if (!at_hand && !rule.second_pass) return "a substitute must be fetched";
      if (!at_hand && own_users[is] == 0) return "nobody forces a substitute of the second pass";
    }
    if (a.ids[t] == a.model[t] && a.weights[t] != a.model_weights[t]) return "weights changed";
  }
  if (changed != a.outcome.substituted) return "miscounted";
  if (std::abs(mass - a.outcome.mass_substituted) > 1e-5) return "mass miscounted";
  if (Fetched(call, a.ids).size() > Fetched(call, a.model).size()) return "fetches more";
  return "";
}

std::string Differs(const Call& call, const RoutingRule& rule, const Answer& a) {
  const auto expected = Transcription(call, rule.alpha, rule.second_pass);
  for (size_t t = 0; t < expected.size(); ++t) {
    if (std::set<int32_t>(a.ids[t].begin(), a.ids[t].end()) != expected[t]) {
      return "token " + std::to_string(t) + " differs from the transcription";
    }
  }
  return Broken(call, rule, a);
}

std::string Show(const Call& call, const RoutingRule& rule) {
  std::string text = "alpha " + std::to_string(rule.alpha) + (rule.second_pass ? " +2" : "");
  for (const auto& row : call.scores) {
    text += " [";
    for (const float s : row) text += " " + std::to_string(s);
    text += " ]";
  }
  text += " resident";
  for (const uint8_t r : call.resident) text += r ? " 1" : " 0";
  return text;
}

/// Digits of `code` in base `levels` as scores: ties are everywhere.
std::vector<float> GridScores(int code, int experts, const std::vector<float>& levels) {
  std::vector<float> scores;
  for (int e = 0; e < experts; ++e, code /= static_cast<int>(levels.size())) {
    scores.push_back(levels[code % levels.size()]);
  }
  return scores;
}

void Residency(Call* call, int bits) {
  call->resident.resize(call->experts);
  for (int e = 0; e < call->experts; ++e) call->resident[e] = (bits >> e) & 1;
}

TEST_CASE("one token: all scores on a grid, all residencies") {
  int64_t cases = 0, substituted = 0;
  const std::vector<float> levels = {0.1f, 0.2f, 0.25f, 0.4f};
  for (const int k : {1, 2, 3}) {
    for (int code = 0; code < 1024; ++code) {
      Call call{{RoutingKind::kSoftmaxTopK, k}, 5, {GridScores(code, 5, levels)}, {}, {}, {}};
      for (int bits = 0; bits < 32; ++bits) {
        Residency(&call, bits);
        for (const float alpha : {0.0f, 0.2f, 0.3f, 0.6f}) {
          const RoutingRule rule = Rule(alpha);
          const Answer a = Apply(call, rule);
          const std::string broken = Differs(call, rule, a);
          ++cases;
          substituted += a.outcome.substituted;
          if (!broken.empty()) FAIL(broken << ": k " << k << " " << Show(call, rule));
          if ((alpha == 0 || bits == 31) && a.ids != a.model) FAIL("must be plain top-k");
        }
      }
    }
  }
  CHECK(cases == 3 * 1024 * 32 * 4);
  CHECK(substituted > cases / 10);
}

TEST_CASE("two tokens: all pairs of score rows on a grid, all residencies, both passes") {
  int64_t substituted[2] = {0, 0}, fetched[2] = {0, 0}, fetched_by_model = 0;
  const std::vector<float> levels = {0.2f, 0.25f, 0.5f};
  for (int code = 0; code < 81 * 81; ++code) {
    Call call{{RoutingKind::kSoftmaxTopK, 2},
              4,
              {GridScores(code % 81, 4, levels), GridScores(code / 81, 4, levels)},
              {},
              {},
              {}};
    for (int bits = 0; bits < 16; ++bits) {
      Residency(&call, bits);
      for (const bool second : {false, true}) {
        const RoutingRule rule = Rule(0.3f, second);
        const Answer a = Apply(call, rule);
        const std::string broken = Differs(call, rule, a);
        if (!broken.empty()) FAIL(broken << ": " << Show(call, rule));
        substituted[second] += a.outcome.substituted;
        fetched[second] += static_cast<int64_t>(Fetched(call, a.ids).size());
        if (!second) fetched_by_model += static_cast<int64_t>(Fetched(call, a.model).size());
      }
    }
  }
  // Each pass is worth something.
  CHECK(substituted[1] > substituted[0]);
  CHECK(fetched[0] < fetched_by_model);
  CHECK(fetched[1] < fetched[0]);
}

TEST_CASE("random batches over every routing kind that has scores") {
  std::mt19937 rng(5);
  std::vector<RoutingSpec> specs(5);
  specs[0].top_k = 3;
  specs[1] = {RoutingKind::kSoftmaxTopK, 3, true};
  specs[2] = {RoutingKind::kTopKSoftmax, 2};
  specs[3] = {RoutingKind::kSigmoidGrouped, 4, true, 2.5f, 4, 2};
  specs[4] = {RoutingKind::kSoftmaxTopK, 3, false, 16.0f, 6, 3};
  int64_t substituted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Call call;
    call.spec = specs[trial % specs.size()];
    call.experts = 12;
    std::uniform_real_distribution<float> uniform(0.01f, 1.0f);
    if (call.spec.kind == RoutingKind::kSigmoidGrouped) {
      for (int e = 0; e < 12; ++e) call.bias.push_back(0.2f * uniform(rng) - 0.1f);
    }
    const size_t tokens = 1 + rng() % 6;
    for (size_t t = 0; t < tokens; ++t) {
      std::vector<float> row;
      // Coarse, so that ties happen.
      for (int e = 0; e < 12; ++e) row.push_back(std::round(uniform(rng) * 20) / 20 + 0.01f);
      call.scores.push_back(row);
    }
    Residency(&call, static_cast<int>(rng() % 4096));
    const RoutingRule rule = Rule(0.05f * static_cast<float>(rng() % 13), trial % 2 == 1);
    const Answer a = Apply(call, rule);
    const std::string broken = Differs(call, rule, a);
    if (!broken.empty()) FAIL(broken << ": " << Show(call, rule));
    substituted += a.outcome.substituted;
  }
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

TEST_CASE("random, nearest and skip replace the slots that the rule replaces") {
  std::mt19937 rng(11);
  std::uniform_real_distribution<float> uniform(0.01f, 1.0f);
  int64_t substituted = 0, differ[4] = {};
  for (int trial = 0; trial < 3000; ++trial) {
    Call call;
    call.spec.top_k = 4;
    call.spec.renormalize = trial % 2 == 1;
    call.experts = 12;
    for (int i = 0; i < 12 * 5; ++i) call.gate.push_back(uniform(rng) - 0.5f);
    for (size_t t = 0; t < 3; ++t) {
      std::vector<float> row;
      for (int e = 0; e < 12; ++e) row.push_back(uniform(rng));
      call.scores.push_back(row);
    }
    Residency(&call, static_cast<int>(rng() % 4096));
    RoutingRule rule = Rule(0.3f);
    rule.own_score_weights = trial % 4 < 2;
    const Answer best = Apply(call, rule);
    substituted += best.outcome.substituted;
    for (const SubstituteChoice choice :
         {SubstituteChoice::kRandom, SubstituteChoice::kNearestGate, SubstituteChoice::kSkip}) {
      rule.substitute = choice;
      const Answer a = Apply(call, rule);
      REQUIRE(a.outcome.substituted == best.outcome.substituted);
      REQUIRE(a.outcome.mass_substituted == best.outcome.mass_substituted);
      for (size_t t = 0; t < 3; ++t) {
        REQUIRE(std::set<int32_t>(a.ids[t].begin(), a.ids[t].end()).size() == 4);
        float sum = 0;
        for (int j = 0; j < 4; ++j) {
          const int32_t e = a.ids[t][j];
          const bool replaced = best.ids[t][j] != best.model[t][j];
          REQUIRE((e != a.model[t][j]) == replaced);
          if (replaced) {
            REQUIRE((call.resident[e] || a.outcome.top_score[e]));
            differ[static_cast<int>(choice)] += e != best.ids[t][j];
          }
          const bool skipped = replaced && choice == SubstituteChoice::kSkip;
          if (skipped) {
            REQUIRE(a.weights[t][j] == 0);
          } else if (!rule.own_score_weights) {
            REQUIRE(a.weights[t][j] == a.model_weights[t][j]);
          }
          sum += a.weights[t][j];
        }
        // A token all of whose slots are skipped is left with its shared expert.
        if (call.spec.renormalize && rule.own_score_weights && sum != 0) {
          REQUIRE(sum == Approx(1));
        }
      }
      REQUIRE(Apply(call, rule).ids == a.ids);
    }
  }
  CHECK(substituted > 1000);
  CHECK(differ[1] > substituted / 2);
  CHECK(differ[2] > substituted / 2);
  CHECK(differ[3] == 0);
}

TEST_CASE("the nearest substitute is the expert at hand with the most parallel gate row") {
  Call call;
  call.spec.top_k = 2;
  call.experts = 5;
  call.scores = {{.5f, .2f, .18f, .17f, .05f}};
  call.resident = {1, 0, 1, 1, 1};
  call.gate = {1, 0, 0, 1, 1, 0, 1, -1, 0.2f, 3};  // rows of width 2
  RoutingRule rule = Rule(0.3f);
  CHECK(Apply(call, rule).ids[0] == Ids{0, 2});
  rule.substitute = SubstituteChoice::kNearestGate;
  CHECK(Apply(call, rule).ids[0] == Ids{0, 4});
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
  RoutingRule nearest = Rule(.3f);
  nearest.substitute = SubstituteChoice::kNearestGate;
  CHECK(ApplyExpertCacheRule(nearest, raw, &ledger, &outcome).code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(ApplyExpertCacheRule(Rule(1.5f), raw, &ledger, &outcome).message()),
             Catch::Contains("alpha = 1.5"));
}

}  // namespace
}  // namespace moert
