// The five policies of a strategy. A policy answers one question from a snapshot and does nothing
// else: no I/O, no locks, no clocks, no device calls. The snapshot carries the time and the step.
//
// A policy may remember what it has observed (ARC's ghosts, learned co-activation): the same
// sequence of inputs then gives the same decisions online, in moert-sim and in a test. An engine
// calls a policy object from one thread at a time, under its lock. Spans are borrowed for the call.
// An invalid answer is replaced by the policy's default and counted
// (EngineStats::policy_fallbacks). A policy with a rule (rules.h) is asked for it when an engine
// opens, and for nothing else: the engine carries it out. One without (nullopt) is asked each time.
#ifndef MOERT_POLICY_H_
#define MOERT_POLICY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/rules.h"

namespace moert {

enum class Phase : int32_t { kPrefill = 0, kDecode = 1 };

struct ExpertKey {
  int32_t layer = 0;
  int32_t expert = 0;
  friend bool operator==(const ExpertKey&, const ExpertKey&) = default;
};

/// When and where a decision is asked.
struct PolicyContext {
  const MoeModelSpec* model = nullptr;
  int64_t step = 0;  // steps begun before this one
  Phase phase = Phase::kPrefill;
  int64_t now_ns = 0;  // the engine's clock
  int layer = 0;
  absl::Span<const int64_t> request_ids = {};  // [rows of the step]; empty: the host did not say
};

/// The true routing of one layer call: T tokens, k experts each, highest weight first.
struct RoutingView {
  int64_t tokens = 0;
  int top_k = 0;
  absl::Span<const int32_t> ids = {};     // [T, k]; -1: an expert that is not here (RoutedInput)
  absl::Span<const float> weights = {};   // [T, k], as they enter the sum
  absl::Span<const float> scores = {};    // [T, E], over all experts
  absl::Span<const int32_t> counts = {};  // [E], tokens of each expert
};

/// The store's view of one layer's experts.
struct LayerResidency {
  absl::Span<const uint8_t> resident = {};   // [E], usable in the version with the most bits
  absl::Span<const uint8_t> usable = {};     // [E], usable in some version
  absl::Span<const uint8_t> in_flight = {};  // [E], a version is being brought
  int capacity = 0;                          // slots the residency policy gave the layer
};

/// Facts about a policy that hold as long as it lives; its rule's contents need no trait.
/// Strategy::promise and Strategy::graph_safe are derived from them.
struct PolicyTraits {
  Promise promise = Promise::kLossy;  // routing, precision, placement: that its decisions keep
  /// The policy must be asked while a layer runs, so the layer cannot be captured. Implied for a
  /// routing, prefetch or placement policy without a rule; a residency or precision policy sets it.
  bool needs_host = false;
  bool next_gate = false;  // prefetch: the next layer's gate must run on this layer's input, too
  /// Prefetch: predicted_scores should be on the next layer's input as the host predicts it
  /// (StepInfo::predict_next), in decode steps that can and while that pays; else on this layer's.
  bool resident_forward = false;
  bool backfills = false;    // placement: as in PlacementRule; the planner enforces it
  double max_low_share = 0;  // likewise
};

struct PolicyScope {
  const MoeModelSpec* model = nullptr;
  int64_t max_tokens = 0;  // of a layer call
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual PolicyTraits traits() const { return {}; }  // may be asked at any time, by any thread
  /// The most heap memory it will hold, scratch of its calls included. Asked before the engine
  /// allocates anything; part of the budget where the fast tier is RAM (MemoryPlan).
  virtual int64_t StateBytes(const PolicyScope& /*scope*/) const { return 0; }
};

/// Something that happened, for policies that learn.
struct LayerEvent {
  enum class Kind : int32_t {
    kRouted,    // the true routing of a layer call is known
    kInserted,  // an expert has entered the cache
    kEvicted,   // an expert has left the cache
  };
  static LayerEvent Routed(const PolicyContext& context, const RoutingView& routing) {
    return {Kind::kRouted, context, routing, {}, false};
  }
  static LayerEvent Inserted(ExpertKey key, bool prefetched) {
    return {Kind::kInserted, {}, {}, key, prefetched};
  }
  static LayerEvent Evicted(ExpertKey key) { return {Kind::kEvicted, {}, {}, key, false}; }

  Kind kind = Kind::kRouted;
  PolicyContext context = {};  // kRouted
  RoutingView routing = {};    // kRouted
  ExpertKey key = {};          // kInserted, kEvicted
  bool prefetched = false;     // kInserted: no layer call has asked for it yet
};

// ----- Routing: which experts does a token use? --------------------------------------------------
class RoutingPolicy : public Policy {
 public:
  /// OK, or why a model cannot be routed by this policy's rules. Asked at open.
  virtual absl::Status Check(const MoeModelSpec& /*model*/) const { return absl::OkStatus(); }
  /// The rule of a phase's layer calls; nullopt: it depends on the call, so none can be captured.
  virtual std::optional<RoutingRule> PhaseRule(Phase /*phase*/) const { return std::nullopt; }
  /// The rule the router executes for this layer call.
  virtual RoutingRule Rule(const PolicyContext& context) {
    return PhaseRule(context.phase).value_or(RoutingRule{});
  }
};

// ----- Prefetch: what comes next? ----------------------------------------------------------------
struct PrefetchSnapshot {
  PolicyContext context = {};  // layer = the layer whose routing just became known
  int target_layer = 0;  // the layer predictions are wanted for (context.layer + 1, or 0 on wrap)
  RoutingView routing = {};
  absl::Span<const float> predicted_scores = {};  // [T, E'] of the next layer's gate, or empty
  bool resident_forward = false;  // they are on an input that the host predicted, not this layer's
  LayerResidency target = {};
  int64_t window_ns = 0;    // until the target layer asks, stalls excluded: measured
  int64_t transfer_ns = 0;  // one expert of the target layer on the link: measured
};

struct PrefetchCandidate {
  ExpertKey key = {};
  float score = 0;     // higher is fetched earlier
  int32_t tokens = 0;  // how many are expected to use it; 0: the policy cannot tell
  /// Probability that the routing uses it, learned from such predictions of absent experts, in [0,
  /// 1]. Negative: unknown; the prefetcher goes by rank.
  float probability = -1;
};

class PrefetchPolicy : public Policy {
 public:
  virtual std::optional<PrefetchRule> rule() const { return std::nullopt; }
  /// Every layer call's routing, in layer order, before Rank of that layer.
  virtual void Observe(const LayerEvent& /*event*/) {}
  /// The experts to have in the fast tier for the target layer, best first, resident ones included
  /// (they are kept, not fetched again). The prefetcher admits what fits the compute window.
  virtual std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& /*snapshot*/) { return {}; }
};

// ----- Residency: how many slots has a layer, and which expert leaves? ---------------------------
/// The measured effect of prefetching on one layer.
struct PrefetchOutlook {
  double recall = 0;     // share of the layer's lookups that predictions name
  double transfers = 0;  // that fit the window before the layer asks
};

struct CapacitySnapshot {
  const MoeModelSpec* model = nullptr;
  int64_t slots = 0;                                // blocks of the pool
  absl::Span<const PrefetchOutlook> prefetch = {};  // [L], or empty: no prefetch
  const PolicyContext* step = nullptr;  // the step that begins; null: open, or a new budget
};

/// One expert that may be evicted.
struct VictimCandidate {
  ExpertKey key = {};
  int64_t last_used = 0;         // tick of the last layer call that used it; 0: never since it came
  int64_t inserted = 0;          // tick it became resident
  int64_t uses = 0;              // layer calls that used it since it came
  int32_t tokens = 0;            // tokens of the last call that used it
  bool unused_prefetch = false;  // brought by a prefetch and not used yet
};

struct VictimSnapshot {
  PolicyContext context = {};
  ExpertKey incoming = {};
  bool for_prefetch = false;                          // no call waits: may be refused
  absl::Span<const VictimCandidate> candidates = {};  // never pinned ones
  bool dispensable = false;  // for_prefetch, and a CPU beside the fast tier computes it if refused
  float probability = -1;    // for_prefetch: that the predicted routing uses it; negative: unknown
  float hidden = 1;          // for_prefetch: the share of its transfer that would then be hidden
};

/// Index of the least recently used candidate: the default. Among those that one call used: fewest
/// tokens first, so that a call of more experts than slots keeps popular ones; then by index.
int LeastRecentlyUsed(absl::Span<const VictimCandidate> candidates);

class ResidencyPolicy : public Policy {
 public:
  virtual std::optional<ResidencyRule> rule() const { return std::nullopt; }
  /// Every layer call's routing, before Victim for it; experts that enter or leave the cache.
  virtual void Observe(const LayerEvent& /*event*/) {}
  /// Slots of each layer, in [0, E], in sum at most `slots`; the others are lent to any layer that
  /// needs one. Asked at open, when the budget changes, and as every step of a cache begins. Empty:
  /// no change at a step, else uniform. A layer gives surplus slots back when its next call ends.
  virtual std::vector<int> Capacity(const CapacitySnapshot& /*snapshot*/) { return {}; }
  /// Index into candidates (never empty). Negative refuses the incoming expert: prefetches only.
  virtual int Victim(const VictimSnapshot& snapshot) {
    return LeastRecentlyUsed(snapshot.candidates);
  }
};

/// Uniform capacities: `slots` dealt evenly, the remainder to the first layers, at most E each.
std::vector<int> UniformCapacity(const MoeModelSpec& model, int64_t slots);

// ----- Precision: which version of an expert should be resident, and which is moved? -------------
/// When a precision policy decides.
enum class PrecisionMoment : int32_t {
  kOpen = 0,      // nothing is resident and nothing is selected yet
  kInterval = 1,  // once an interval, at a step's end
  kShrink = 2,    // a smaller budget demotes some at once
};

struct PrecisionSnapshot {
  PolicyContext context = {};  // layer unused
  // Since the last kInterval, per expert, [sum over layers of E]: tokens that selected it.
  absl::Span<const int64_t> selections = {};
  // Likewise: its version, resident or arriving, from 0 (fewest bits) up; with two, 1 is high.
  absl::Span<const uint8_t> high = {};
  // [L], high experts that fit in a layer; TransitionOptions::shared: only the sum counts.
  absl::Span<const int32_t> high_capacity = {};
  PrecisionMoment moment = PrecisionMoment::kInterval;
  // With more than two versions:
  int64_t capacity_bytes = 0;            // what all experts together may take
  absl::Span<const int64_t> bytes = {};  // [sum over layers of E][version, most bits first]
};

/// With more than two versions an expert is listed once for every version that it moves up or down.
struct PrecisionDecision {
  std::vector<ExpertKey> promote = {};  // kOpen: high from the start. kInterval: best first
  std::vector<ExpertKey> demote = {};   // kInterval, over two versions kShrink too: coldest first
  /// kShrink: the worth of keeping each expert high, in any unit, [sum over layers of E]. The
  /// experts of least worth in each layer are demoted. Empty: their selections are their worth.
  std::vector<double> worth = {};
};

/// How versions change where every expert is resident in one (Serving::kHotSet, kLowPlusCache).
struct TransitionOptions {
  int64_t interval_ns = 200'000'000;  // kHotSet: time between two decisions
  /// kHotSet: share of each layer's experts that is held high; with more than two versions all
  /// experts together may take the bytes of so many. Negative: as many as the budget holds.
  double hi_fraction = -1;
  bool shared = false;  // kHotSet: high versions belong to no layer: one may have more of them
  int spare = 4;        // kHotSet: blocks kept free in each pool, for swaps; 0: by model and link
  double max_gbps = 0;  // limit of transition bytes, GB/s; 0: none
};

/// A transfer that is about to begin.
struct TransferSnapshot {
  PolicyContext context = {};
  ExpertKey key = {};
  bool prefetch = false;
  int resident = -1;         // >= 0: the version that the call used, which may be replaced after it
  int32_t tokens = 0;        // tokens that want it (predicted ones for a prefetch)
  int64_t layer_tokens = 0;  // token x k slots of the layer
  int num_versions = 0;
  absl::Span<const int32_t> layer_counts = {};  // [E] tokens of every expert (likewise), or empty
};

class PrecisionPolicy : public Policy {
 public:
  /// Chooses the high experts where all are resident in versions. With two, at open, `promote`
  /// holds at most high_capacity[l] of layer l; the layer's first experts fill up the rest. At open
  /// an error refuses the strategy, as does a longer list, a repeated or unknown expert, or, with
  /// more than two, a decision beyond capacity_bytes. Later errors change nothing and are counted.
  virtual absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& /*snapshot*/) {
    return PrecisionDecision();
  }
  /// A cache of several versions: the version (index into the strategy's, 0: most bits) that a load
  /// brings. Also asked after a layer call for every expert that it used in a lower version
  /// (`resident`): a lower index replaces it in its block, after demand loads and prefetches.
  virtual int TransferVersion(const TransferSnapshot& snapshot) {
    return snapshot.resident < 0 ? 0 : snapshot.resident;
  }
};

// ----- Placement: what to do with a miss? --------------------------------------------------------
enum class Placement : int32_t {
  kLoad = 0,
  kCpu = 1,
  // The low version answers: at once, where it is always resident (Serving::kCacheOverLow), else
  // after a transfer of its fewer bytes, dropped after the call (a cache of two versions).
  kLow = 2,
};

/// Whether experts that the CPU computed are loaded after the call, when the link is idle.
enum class Backfill : int32_t {
  kNever = 0,
  kFreeSlots = 1,  // into free slots of the layer
  kAlways = 2,     // also in place of an expert that the residency policy finds worth less
};

struct MissView {
  int32_t expert = 0;
  int32_t tokens = 0;
  float mass = 0;         // summed routing weight
  int64_t bytes = 0;      // of the transfer
  int64_t load_ns = 0;    // modelled
  int64_t cpu_ns = 0;     // modelled; negative: no CPU executor beside the fast tier
  bool arriving = false;  // a prefetch of it is in flight; load_ns is about what remains of it
  // The share of a request's remaining loss budget (PlacementRule::max_low_share) that a low answer
  // takes, the largest over its requests. Above 1: not allowed; negative: no low version.
  float low_cost = -1;
};

struct PlacementSnapshot {
  PolicyContext context = {};
  absl::Span<const MissView> misses = {};
  int64_t link_busy_ns = 0;  // modelled, about: until what is under way has arrived
};

struct PlacementDecision {
  std::vector<Placement> placements = {};  // one a miss, in order
  Backfill backfill = Backfill::kNever;
};

class PlacementPolicy : public Policy {
 public:
  virtual std::optional<PlacementRule> rule() const { return std::nullopt; }
  /// Default: every miss is loaded. An arriving expert keeps arriving if the CPU computes it.
  virtual PlacementDecision Place(const PlacementSnapshot& snapshot) {
    return {std::vector<Placement>(snapshot.misses.size(), Placement::kLoad), Backfill::kNever};
  }
};

}  // namespace moert

#endif  // MOERT_POLICY_H_
