// Rules: decisions as data. A policy (policy.h) whose decisions follow one of these rules returns
// the rule. The engine carries it out itself, on a device too: a step can then be captured in a
// CUDA graph although experts may be missing. A policy without a rule is asked on the host. The
// same inputs give the same decisions, whoever returns the rule.
//
//   class OverAllLayers : public ResidencyPolicy {
//    public:
//     std::optional<ResidencyRule> rule() const override {
//       return ResidencyRule{.kind = ResidencyRuleKind::kWorth, .shared_slots = true};
//     }
//   };
#ifndef MOERT_RULES_H_
#define MOERT_RULES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "moert/promise.h"

namespace moert {

// ----- Routing: which experts does a token use? --------------------------------------------------
enum class RoutingRuleKind : int32_t {
  kTopK = 0,         // the model's own routing
  kExpertCache = 1,  // Algorithm 1 of the importance paper, against the residency table
};

struct RoutingRule {
  RoutingRuleKind kind = RoutingRuleKind::kTopK;
  // kExpertCache only:
  float alpha = 0;           // half width of the substitution band around beta; 0: plain top-k
  bool second_pass = false;  // also substitute by experts that other tokens force to be fetched
  // Caps for every request over its lifetime (rows without request ids are one request): the
  // substituted share of its slots and of its routing mass (the model's, of displaced experts).
  float max_slot_share = 1;
  float max_mass_share = 1;
  // Weights of a token with substitutes. true: its experts' own gate scores, then the model's
  // normalization and scaling; false: a substitute gets the weight of the expert it displaces.
  bool own_score_weights = true;

  Promise promise() const;
};

// ----- Residency: how many slots has a layer, and which expert leaves? ---------------------------
enum class CapacityRuleKind : int32_t {
  kUniform = 0,
  kShallowFirst = 1,  // the first layers are filled, the others share the rest (Fate Sec. 4.4)
  kMeasured = 2,      // to the layers where slots spare most misses that prefetching cannot hide
};

/// How the slots of a cache are dealt to its layers.
struct CapacityRule {
  CapacityRuleKind kind = CapacityRuleKind::kUniform;
  int shallow = -1;    // kShallowFirst: layers that are filled; -1: a sixth of all
  int transient = -1;  // slots that belong to no layer; -1: enough for experts passing through
};

enum class ResidencyRuleKind : int32_t {
  kLeastRecentlyUsed = 0,
  kWorth = 1,         // the expert that the next calls will want least, by scores and past use
  kAverageScore = 2,  // the expert with the lowest average score over the last calls
};

struct ResidencyRule {
  ResidencyRuleKind kind = ResidencyRuleKind::kLeastRecentlyUsed;
  int window = 64;            // kAverageScore: calls of the layer, 1 to 4096
  bool shared_slots = false;  // kWorth: layers share all slots; the least worth over all leaves
  /// On a device, layers keep the slots they had when the device took over the cache.
  CapacityRule capacity = {};

  absl::Status Validate() const;  // OK, or which field is out of range
};

// ----- Prefetch: what comes next? ----------------------------------------------------------------
enum class PrefetchRuleKind : int32_t {
  kNextGate = 0,  // by the next layer's gate, and how often its predictions were right
  kTopScore = 1,  // the experts that this gate scores highest; a device ranks them by kNextGate
};

struct PrefetchRule {
  PrefetchRuleKind kind = PrefetchRuleKind::kNextGate;
  bool wrap = false;  // kNextGate, on the host only: also the next step's first layer
  float alpha = 0;    // kTopScore: scores must exceed (1 + alpha) * threshold; 0: actives
  bool resident_forward = false;  // on the host only: see PolicyTraits::resident_forward

  absl::Status Validate() const;
};

// ----- Placement: what to do with a miss? --------------------------------------------------------
/// How misses are shared with a CPU that computes beside the fast tier.
enum class CpuBalance : int32_t {
  kNone = 0,          // all are loaded
  kInTurns = 1,       // Algorithm 2 of the importance paper
  kByCompletion = 2,  // so that both are done earliest
};

struct PlacementRule {
  CpuBalance balance = CpuBalance::kNone;
  bool backfills = false;  // in decode, always loads experts that a CPU computed, after the call
  /// If there are low versions to answer misses (Placement::kLow): the share of each request's
  /// routing mass that they may answer, over the request's lifetime.
  double max_low_share = 0;
  /// In decode, misses with a MissView::low_cost of at most 1 / low_patience are answered low, in
  /// the order given. 0: none.
  double low_patience = 0;
  bool spares_low = false;  // a miss that the CPU computes before its load ends is not answered low

  Promise promise() const;
  absl::Status Validate() const;
};

}  // namespace moert

#endif  // MOERT_RULES_H_
