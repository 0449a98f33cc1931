// Algorithm 1 of the importance paper as a plain transcription, the cases it is tried on, and what
// an implementation promises of every answer: for the host's rule and the device's.
#ifndef MOERT_TESTS_SUPPORT_EXPERT_CACHE_CASES_H_
#define MOERT_TESTS_SUPPORT_EXPERT_CACHE_CASES_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "moert/router.h"
#include "route/expert_cache_rule.h"

namespace moert::test {

using Ids = std::vector<int32_t>;

/// A call with every array owned. Scores are given; ids and weights are the model's.
struct Call {
  RoutingSpec spec;
  int experts = 0;
  std::vector<std::vector<float>> scores;  // [T][E]
  std::vector<float> bias;
  std::vector<uint8_t> resident;
  std::vector<int64_t> requests;

  std::vector<std::vector<float>> Keys() const {
    std::vector<std::vector<float>> keys = scores;
    for (auto& row : keys) {
      for (int e = 0; e < experts; ++e) row[e] += bias.empty() ? 0 : bias[e];
    }
    return keys;
  }
};

/// Whether a group-limited selection leaves an expert eligible, from the definition.
inline std::vector<bool> Eligible(const Call& call, const std::vector<float>& keys) {
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
inline Ids Ranked(const std::vector<float>& value, const std::vector<bool>& of) {
  Ids ids;
  for (int e = 0; e < static_cast<int>(value.size()); ++e) {
    if (of[e]) ids.push_back(e);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return value[a] > value[b]; });
  return ids;
}

inline Ids ModelChoice(const Call& call, size_t t) {
  const std::vector<float> keys = call.Keys()[t];
  Ids ids = Ranked(keys, Eligible(call, keys));
  ids.resize(call.spec.top_k);
  return ids;
}

inline std::vector<float> ModelWeights(const Call& call, size_t t, const Ids& ids) {
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
inline std::vector<std::set<int32_t>> Transcription(const Call& call, float alpha,
                                                    bool second_pass) {
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
  absl::Status status;
  std::vector<Ids> model, ids;
  std::vector<std::vector<float>> model_weights, weights;
  ExpertCacheOutcome outcome;
};

inline Answer Apply(const Call& call, const RoutingRule& rule, SubstitutionLedger* ledger) {
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
  a.status = ApplyExpertCacheRule(
      rule,
      {&call.spec, call.experts, static_cast<int64_t>(call.scores.size()), scores, call.bias,
       call.resident, call.requests, absl::MakeSpan(ids), absl::MakeSpan(weights)},
      ledger, &a.outcome);
  const int k = call.spec.top_k;
  for (size_t t = 0; t < call.scores.size(); ++t) {
    a.ids.emplace_back(ids.begin() + t * k, ids.begin() + (t + 1) * k);
    a.weights.emplace_back(weights.begin() + t * k, weights.begin() + (t + 1) * k);
  }
  return a;
}

inline Answer Apply(const Call& call, const RoutingRule& rule) {
  SubstitutionLedger ledger;
  return Apply(call, rule, &ledger);
}

inline RoutingRule Rule(float alpha, bool second_pass = false) {
  RoutingRule rule;
  rule.kind = RoutingRuleKind::kExpertCache;
  rule.alpha = alpha;
  rule.second_pass = second_pass;
  return rule;
}

inline std::set<int32_t> Fetched(const Call& call, const std::vector<Ids>& ids) {
  std::set<int32_t> fetched;
  for (const Ids& row : ids) {
    for (const int32_t e : row) {
      if (!call.resident[e]) fetched.insert(e);
    }
  }
  return fetched;
}

/// Everything the rule promises of one answer. Plain ifs: this runs millions of times.
inline std::string Broken(const Call& call, const RoutingRule& rule, const Answer& a) {
  if (!a.status.ok()) return std::string(a.status.message());
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

inline std::string Differs(const Call& call, const RoutingRule& rule, const Answer& a) {
  const auto expected = Transcription(call, rule.alpha, rule.second_pass);
  for (size_t t = 0; t < expected.size(); ++t) {
    if (std::set<int32_t>(a.ids[t].begin(), a.ids[t].end()) != expected[t]) {
      return "token " + std::to_string(t) + " differs from the transcription";
    }
  }
  return Broken(call, rule, a);
}

inline std::string Show(const Call& call, const RoutingRule& rule) {
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
inline std::vector<float> GridScores(int code, int experts, const std::vector<float>& levels) {
  std::vector<float> scores;
  for (int e = 0; e < experts; ++e, code /= static_cast<int>(levels.size())) {
    scores.push_back(levels[code % levels.size()]);
  }
  return scores;
}

inline void Residency(Call* call, int bits) {
  call->resident.resize(call->experts);
  for (int e = 0; e < call->experts; ++e) call->resident[e] = (bits >> e) & 1;
}

/// All scores of one token on a grid, all residencies: f(call, rule, all resident).
template <typename F>
void ForOneToken(F f) {
  const std::vector<float> levels = {0.1f, 0.2f, 0.25f, 0.4f};
  for (const int k : {1, 2, 3}) {
    for (int code = 0; code < 1024; ++code) {
      Call call{{RoutingKind::kSoftmaxTopK, k}, 5, {GridScores(code, 5, levels)}, {}, {}, {}};
      for (int bits = 0; bits < 32; ++bits) {
        Residency(&call, bits);
        for (const float alpha : {0.0f, 0.2f, 0.3f, 0.6f}) f(call, Rule(alpha), bits == 31);
      }
    }
  }
}

/// All pairs of score rows on a grid, all residencies, both passes: f(call, rule).
template <typename F>
void ForTwoTokens(F f) {
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
      for (const bool second : {false, true}) f(call, Rule(0.3f, second));
    }
  }
}

/// Random batches over every routing kind that has scores: f(call, rule).
template <typename F>
void ForRandomBatches(int trials, F f) {
  std::mt19937 rng(5);
  std::vector<RoutingSpec> specs(5);
  specs[0].top_k = 3;
  specs[1] = {RoutingKind::kSoftmaxTopK, 3, true};
  specs[2] = {RoutingKind::kTopKSoftmax, 2};
  specs[3] = {RoutingKind::kSigmoidGrouped, 4, true, 2.5f, 4, 2};
  specs[4] = {RoutingKind::kSoftmaxTopK, 3, false, 16.0f, 6, 3};
  for (int trial = 0; trial < trials; ++trial) {
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
    f(call, Rule(0.05f * static_cast<float>(rng() % 13), trial % 2 == 1));
  }
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_EXPERT_CACHE_CASES_H_
