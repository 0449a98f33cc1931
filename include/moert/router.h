// Router: hidden states -> the k experts of every token, their weights, and the tokens grouped by
// expert. Runs gate(l+1) on the same input when a prefetch policy wants it (Fate Sec. 4.1). Applies
// the expert-cache rule (importance paper Sec. 5.1, Algorithm 1) against a store's residency. fp32
// throughout. Among equal scores the lower expert index wins. A token's result depends on its row
// alone, except under the expert-cache rule, which is defined over a batch. Not thread-safe: one
// call at a time per object; it uses the threads of its pool.
#ifndef MOERT_ROUTER_H_
#define MOERT_ROUTER_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/policy.h"
#include "moert/source/expert_source.h"

namespace moert {

class SubstitutionLedger;
class ThreadPool;

/// Routing of one layer call. Vectors keep their capacity from call to call.
struct RoutingResult {
  int64_t tokens = 0;
  int top_k = 0;
  int num_experts = 0;
  std::vector<int32_t> ids = {};      // [T, k], in the order of the model's rule, a substitute in
                                      // the slot of the one it displaces; -1: one not here
  std::vector<float> weights = {};    // [T, k], as they enter the sum
  std::vector<float> scores = {};     // [T, E]
  std::vector<int32_t> counts = {};   // [E]
  std::vector<int32_t> offsets = {};  // [E + 1] into grouped_*
  std::vector<int32_t> grouped_tokens = {};  // [slots with experts] rows of x, by expert, ascending
  std::vector<int32_t> grouped_slots = {};   // [slots with experts] t * k + j of each
  std::vector<float> next_scores = {};       // [T, E'] of the next layer, or empty

  // Substitution. Mass: the sum of the model's own weights before substitution.
  int64_t substituted = 0;  // slots changed by the expert-cache rule
  double mass = 0, mass_substituted = 0;
  std::vector<uint8_t> top_score = {};  // [E], the expert-cache rule's set C; empty without it
  int64_t model_lookups = 0;            // distinct experts of the model's own choice
  int64_t model_hits = 0;               // ... that were resident

  /// Slots of the experts that `of` [E] marks, and their summed weight.
  std::pair<int64_t, double> ShareOf(absl::Span<const uint8_t> of) const {
    std::pair<int64_t, double> share = {0, 0};
    for (size_t slot = 0; slot < ids.size(); ++slot) {
      if (ids[slot] < 0 || !of[ids[slot]]) continue;
      ++share.first;
      share.second += weights[slot];
    }
    return share;
  }

  RoutingView view() const { return {tokens, top_k, ids, weights, scores, counts}; }
};

/// Statistics of routings given to Count. Slots are token x k; mass sums the model's own weights.
struct RouterStats {
  int64_t slots = 0;
  int64_t slots_substituted = 0;
  double mass = 0;
  double mass_substituted = 0;  // of the experts that were displaced
  int64_t model_lookups = 0;    // distinct experts of the model's own choice
  int64_t model_hits = 0;       // ... that were resident
  double worst_slot_share = 0;  // the largest substituted share that any one request reached
  double worst_mass_share = 0;  // likewise
};

/// Routing weights of a layer (ExpertSource::ReadConstants), borrowed; empty if its spec has none.
struct RouterConstants {
  absl::Span<const float> gate = {};  // [E, hidden]; empty: the layer takes given routings only
  absl::Span<const float> selection_bias = {};  // [E]
  absl::Span<const float> logit_bias = {};      // [E]
  absl::Span<const float> expert_scales = {};   // [E]: apply to given routings, too
  absl::Span<const int32_t> hash_experts = {};  // [hash_vocab, k]: distinct ones in [0, E)

  static RouterConstants Of(const LayerConstants& constants) {
    return {constants.gate, constants.selection_bias, constants.logit_bias, constants.expert_scales,
            constants.hash_experts};
  }
};

class Router {
 public:
  /// One entry of `layers` per MoE layer. `pool` may be null if no layer has a gate. All borrowed.
  /// InvalidArgument names what does not fit the model.
  static absl::StatusOr<std::unique_ptr<Router>> Create(const MoeModelSpec* model,
                                                        std::vector<RouterConstants> layers,
                                                        ThreadPool* pool);
  /// For layers that have a gate and at most a selection bias.
  static absl::StatusOr<std::unique_ptr<Router>> Create(const MoeModelSpec* model,
                                                        std::vector<absl::Span<const float>> gates,
                                                        std::vector<absl::Span<const float>> biases,
                                                        ThreadPool* pool);
  ~Router();

  /// The model's own choice for x: [tokens, hidden] fp32, contiguous.
  absl::Status Route(int layer, const float* x, int64_t tokens, RoutingResult* result) {
    return Route(layer, x, tokens, {}, {}, {}, /*next_gate=*/false, result);
  }
  /// Routes by a rule. The expert-cache rule reads `residency` (spans may be empty under plain
  /// top-k) and `request_ids` ([tokens] or empty). With `next_gate`, also scores layer + 1 (0 after
  /// the last) on x. Only layers that choose experts by token id (RoutingSpec::hash_vocab) read
  /// `token_ids` ([tokens]); no rule applies to them.
  absl::Status Route(int layer, const float* x, int64_t tokens, const RoutingRule& rule,
                     const LayerResidency& residency, absl::Span<const int64_t> request_ids,
                     bool next_gate, RoutingResult* result,
                     absl::Span<const int32_t> token_ids = {});
  /// Scores of all experts of a layer on x, into scores: [tokens, E].
  absl::Status Score(int layer, const float* x, int64_t tokens, std::vector<float>* scores);

  void Count(const RoutingResult& routing);  // into stats(), whether this router made it or not
  /// Counts the model's own choice for `slots` slots of summed weight `mass`.
  void CountOwnChoice(int64_t slots, double mass);
  /// Counts that experts of summed weight `mass` were displaced from `slots` of them.
  void CountSubstituted(int64_t slots, double mass);
  RouterStats stats() const;

  /// Like Route, for a given routing: `rule` applies to it as to the model's own. Checks ids and
  /// sizes; scores and next_scores may be empty.
  absl::Status RouteGiven(int layer, int64_t tokens, absl::Span<const int32_t> ids,
                          absl::Span<const float> weights, absl::Span<const float> scores,
                          absl::Span<const float> next_scores, const RoutingRule& rule,
                          const LayerResidency& residency, absl::Span<const int64_t> request_ids,
                          RoutingResult* result);

 private:
  Router(const MoeModelSpec* model, std::vector<RouterConstants> layers, ThreadPool* pool);
  absl::Status CheckLayer(int layer, bool gate) const;  // `gate`: the layer must have one
  /// Writes the logits of several layers' gates on the same input into logits_: token by token, one
  /// layer's experts after the other's. Returns the number of logits per token.
  int64_t Logits(std::initializer_list<int> layers, const float* x, int64_t tokens);
  /// Turns logits, one token every `stride` elements, into the scores of all experts.
  absl::Status ScoreLogits(int layer, const float* logits, int64_t stride, int64_t tokens,
                           std::vector<float>* scores) const;
  /// Runs `work` for every token, on the pool if there are enough. The error is the first token's.
  absl::Status ForEachToken(int64_t tokens,
                            absl::FunctionRef<absl::Status(int64_t token)> work) const;
  /// Writes into r->ids the experts that a hash layer assigns to its tokens' ids.
  absl::Status LookUp(int layer, int64_t tokens, absl::Span<const int32_t> token_ids,
                      RoutingResult* r) const;
  /// Turns the model's own choice into the final routing: applies the rule and groups tokens.
  absl::Status Finish(int layer, const RoutingRule& rule, const LayerResidency& residency,
                      absl::Span<const int64_t> request_ids, RoutingResult* result);

  const MoeModelSpec* model_;
  const std::vector<RouterConstants> layers_;
  ThreadPool* pool_;
  std::unique_ptr<SubstitutionLedger> ledger_;
  RouterStats stats_;  // all but the worst shares
  std::vector<float> logits_;
};

/// Turns a token's logits into scores over all experts and the k chosen with their weights. bias:
/// the selection bias, [E] or empty; scores: [E]; ids, weights: [k]. logit_bias, expert_scales and
/// hash_vocab are the Router's. MoeModelSpec::Validate accepts `spec`. For tests and hosts that
/// route themselves.
absl::Status RouteToken(const RoutingSpec& spec, absl::Span<const float> logits,
                        absl::Span<const float> bias, float* scores, int32_t* ids, float* weights);

}  // namespace moert

#endif  // MOERT_ROUTER_H_
