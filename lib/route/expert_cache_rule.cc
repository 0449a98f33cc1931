#include "route/expert_cache_rule.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "base/fmt_absl.h"
#include "route/route_token.h"

namespace moert {
namespace {

/// The rule's view of one token: thresholds, and the experts that may be considered at all.
struct TokenView {
  absl::Span<const float> scores;  // [E]
  absl::Span<int32_t> ids;         // [k]
  absl::Span<float> weights;       // [k]
  bool has_beta = false;           // false: no inactive expert is eligible
  float beta = 0;
  float top_limit = 0;             // (1 + alpha) beta: above it, top-score
  float band_floor = 0;            // (1 - alpha) beta
  std::vector<int> slots;          // replaceable slots, worst score first
  std::vector<int32_t> displaced;  // experts that were replaced
};

class ExpertCache {
 public:
  ExpertCache(const RoutingRule& rule, const ExpertCacheCall& call, SubstitutionLedger* ledger,
              ExpertCacheOutcome* outcome)
      : rule_(rule), call_(call), ledger_(ledger), out_(outcome), k_(call.spec->top_k) {}

  void Run() {
    out_->substituted = 0;
    out_->mass_substituted = 0;
    out_->top_score.assign(call_.num_experts, 0);
    tokens_.resize(call_.tokens);
    keys_.resize(call_.num_experts);
    active_.resize(call_.num_experts);
    ledger_->BeginCall(call_.request_ids);
    for (int64_t t = 0; t < call_.tokens; ++t) View(t);
    for (TokenView& token : tokens_) FindReplaceable(&token);
    for (int64_t t = 0; t < call_.tokens; ++t) SubstituteResident(t);
    if (rule_.second_pass) GroupWhatIsFetched();
    for (TokenView& token : tokens_) Weigh(&token);
    ledger_->EndCall(call_.request_ids);
  }

 private:
  SubstitutionAccount& Account(int64_t t) {
    return call_.request_ids.empty() ? ledger_->anonymous() : ledger_->Of(call_.request_ids[t]);
  }

  bool AtHand(int32_t e) const { return call_.resident[e] != 0 || out_->top_score[e] != 0; }

  /// Marks the experts of the groups that the token selected; all experts without groups.
  void MarkEligible(absl::Span<const float> scores) {
    for (int e = 0; e < call_.num_experts; ++e) {
      keys_[e] = scores[e] + (call_.bias.empty() ? 0 : call_.bias[e]);
    }
    MaskUnselectedGroups(*call_.spec, absl::MakeSpan(keys_));
  }
  bool Eligible(int32_t e) const { return keys_[e] != -std::numeric_limits<float>::infinity(); }

  /// Sets the thresholds of token t, and adds its top-score experts to C.
  void View(int64_t t) {
    TokenView& token = tokens_[t];
    token.scores = call_.scores.subspan(t * call_.num_experts, call_.num_experts);
    token.ids = call_.ids.subspan(t * k_, k_);
    token.weights = call_.weights.subspan(t * k_, k_);
    MarkEligible(token.scores);
    ranked_scores_.clear();
    for (int32_t e = 0; e < call_.num_experts; ++e) {
      if (Eligible(e)) ranked_scores_.push_back(token.scores[e]);
    }
    token.has_beta = static_cast<int>(ranked_scores_.size()) > k_;
    if (token.has_beta) {
      best_.resize(k_ + 1);
      TopK(ranked_scores_, k_ + 1, best_.data());
      token.beta = ranked_scores_[best_[k_]];
      token.top_limit = (1 + rule_.alpha) * token.beta;
      token.band_floor = (1 - rule_.alpha) * token.beta;
    }
    for (const int32_t e : token.ids) {
      if (!token.has_beta || token.scores[e] > token.top_limit) out_->top_score[e] = 1;
    }
    SubstitutionAccount& account = Account(t);
    account.slots += k_;
    for (const float w : token.weights) account.mass += w;
  }

  void FindReplaceable(TokenView* token) {
    token->slots.clear();
    // With alpha = 0 only exact ties could be exchanged, but the rule promises plain top-k.
    if (!token->has_beta || rule_.alpha == 0) return;
    for (int j = 0; j < k_; ++j) {
      const int32_t e = token->ids[j];
      if (token->scores[e] <= token->top_limit && !AtHand(e)) token->slots.push_back(j);
    }
    // Among equals the later slot, the model's lower rank, goes first.
    std::sort(token->slots.begin(), token->slots.end(), [&](int a, int b) {
      const float score_a = token->scores[token->ids[a]], score_b = token->scores[token->ids[b]];
      return score_a != score_b ? score_a < score_b : a > b;
    });
  }

  /// Finds the token's inactive experts whose score lies in the band and for which `available` is
  /// true, best first.
  template <typename Available>
  void FindSubstitutes(const TokenView& token, const Available& available) {
    substitutes_.clear();
    MarkEligible(token.scores);
    // Excludes the model's own choice, including displaced experts, and those that the rule chose.
    std::fill(active_.begin(), active_.end(), 0);
    for (const int32_t e : token.ids) active_[e] = 1;
    for (const int32_t e : token.displaced) active_[e] = 1;
    for (int32_t e = 0; e < call_.num_experts; ++e) {
      const float s = token.scores[e];
      if (active_[e] || !(s >= token.band_floor && s <= token.beta)) continue;
      if (Eligible(e) && available(e)) substitutes_.push_back(e);
    }
    std::stable_sort(substitutes_.begin(), substitutes_.end(),
                     [&](int32_t a, int32_t b) { return token.scores[a] > token.scores[b]; });
  }

  static void Substitute(TokenView* token, int slot, int32_t by) {
    token->displaced.push_back(token->ids[slot]);
    token->ids[slot] = by;
  }

  /// Adds the displacement of a slot to the account. False: a cap forbids it.
  bool Book(SubstitutionAccount* account, float weight) {
    if (!account->Allows(weight, rule_.max_slot_share, rule_.max_mass_share)) return false;
    ++account->substituted;
    account->mass_substituted += weight;
    ++out_->substituted;
    out_->mass_substituted += weight;
    return true;
  }

  void SubstituteResident(int64_t t) {
    TokenView& token = tokens_[t];
    if (token.slots.empty()) return;
    FindSubstitutes(token, [this](int32_t e) { return AtHand(e); });
    const size_t pairs = std::min(substitutes_.size(), token.slots.size());
    SubstitutionAccount& account = Account(t);
    size_t n = 0;
    while (n < pairs && Book(&account, token.weights[token.slots[n]])) ++n;
    // The best displaced expert gets the best substitute.
    for (size_t i = 0; i < n; ++i) Substitute(&token, token.slots[n - 1 - i], substitutes_[i]);
    token.slots.erase(token.slots.begin(), token.slots.begin() + static_cast<std::ptrdiff_t>(n));
  }

  void GroupWhatIsFetched() {
    std::vector<int32_t> users(call_.num_experts, 0);
    std::vector<uint8_t> anchored(call_.num_experts, 0);
    for (const int32_t e : call_.ids) ++users[e];
    for (int64_t t = 0; t < call_.tokens; ++t) {
      TokenView& token = tokens_[t];
      for (const int slot : token.slots) {
        const int32_t displaced = token.ids[slot];
        if (anchored[displaced]) continue;
        FindSubstitutes(token, [&](int32_t e) {
          return !AtHand(e) && users[e] > 0 && users[e] >= users[displaced];
        });
        if (substitutes_.empty()) continue;
        const int32_t by = *std::max_element(
            substitutes_.begin(), substitutes_.end(),
            [&](int32_t a, int32_t b) { return users[a] < users[b]; });  // the first of equals
        if (!Book(&Account(t), token.weights[slot])) break;
        --users[displaced];
        ++users[by];
        anchored[by] = 1;
        Substitute(&token, slot, by);
      }
    }
  }

  void Weigh(TokenView* token) {
    if (token->displaced.empty() || !rule_.own_score_weights) return;
    for (int j = 0; j < k_; ++j) token->weights[j] = token->scores[token->ids[j]];
    NormalizeWeights(*call_.spec, token->weights);
  }

  const RoutingRule& rule_;
  const ExpertCacheCall& call_;
  SubstitutionLedger* const ledger_;
  ExpertCacheOutcome* const out_;
  const int k_;
  std::vector<TokenView> tokens_;
  std::vector<float> keys_;           // [E] of the current token
  std::vector<float> ranked_scores_;  // of its eligible experts
  std::vector<uint8_t> active_;       // [E]
  std::vector<int32_t> best_;
  std::vector<int32_t> substitutes_;
};

}  // namespace

absl::Status CheckExpertCacheRule(const RoutingSpec& spec) {
  if (spec.kind != RoutingKind::kSparseMixer) return absl::OkStatus();
  return InvalidArgument(
      "substitution by the expert-cache rule needs a score of every expert, and {} routing has "
      "none: its weights are two softmaxes over different subsets; legal kinds: {}, {}, {}",
      RoutingKindName(spec.kind), RoutingKindName(RoutingKind::kSoftmaxTopK),
      RoutingKindName(RoutingKind::kTopKSoftmax), RoutingKindName(RoutingKind::kSigmoidGrouped));
}

absl::Status ApplyExpertCacheRule(const RoutingRule& rule, const ExpertCacheCall& call,
                                  SubstitutionLedger* ledger, ExpertCacheOutcome* outcome) {
  if (const absl::Status status = CheckExpertCacheRule(*call.spec); !status.ok()) return status;
  if (!(rule.alpha >= 0 && rule.alpha <= 1)) {
    return InvalidArgument("expert-cache rule: alpha = {}: must be in [0, 1]", rule.alpha);
  }
  const size_t tokens = static_cast<size_t>(call.tokens);
  if (call.scores.size() != tokens * call.num_experts ||
      call.resident.size() != static_cast<size_t>(call.num_experts)) {
    return InvalidArgument(
        "expert-cache rule: {} scores and {} residency bits for {} tokens of {} experts; the "
        "routing must come with the scores of all experts",
        call.scores.size(), call.resident.size(), tokens, call.num_experts);
  }
  ExpertCache(rule, call, ledger, outcome).Run();
  return absl::OkStatus();
}

}  // namespace moert
