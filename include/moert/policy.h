// The five policy seams. A policy answers one question from a snapshot and does nothing else: no
// I/O, no locks, no clocks, no device calls; `now_ns` and `step` come in the snapshot (design rule
// 5).
//
// A policy object may remember what it was told (ARC's ghosts, learned co-activation), so its
// answers are a function of the sequence of its inputs: the same sequence gives the same decisions,
// online, in moert-sim and in a test. An engine calls one policy object from one thread at a time,
// under the engine's lock. Spans are borrowed for the call. An invalid answer is replaced by the
// seam's default and counted (EngineStats::policy_fallbacks).
#ifndef MOERT_POLICY_H_
#define MOERT_POLICY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/model.h"

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
  absl::Span<const int64_t> request_ids;  // [rows of the step], or empty if the host did not say
};

/// The true routing of one layer call: T tokens, k experts each, highest weight first.
struct RoutingView {
  int64_t tokens = 0;
  int top_k = 0;
  absl::Span<const int32_t> ids;     // [T, k]
  absl::Span<const float> weights;   // [T, k], as they enter the sum
  absl::Span<const float> scores;    // [T, E], over all experts
  absl::Span<const int32_t> counts;  // [E], tokens of each expert
};

/// What the store holds of one layer's experts.
struct LayerResidency {
  absl::Span<const uint8_t> resident;   // [E], usable in the version with the most bits
  absl::Span<const uint8_t> usable;     // [E], usable in some version
  absl::Span<const uint8_t> in_flight;  // [E], a version is being brought
  int capacity = 0;                     // slots the residency policy gave the layer
};

// ---------------------------------------------------------------------------------------------------
// Routing: which experts does a token use?

enum class RoutingRuleKind : int32_t {
  kTopK = 0,         // the model's own routing
  kExpertCache = 1,  // Algorithm 1 of the importance paper, against the residency table
};

/// Who takes a replaceable slot. Only kBestScore is the paper's rule; the others decide which slots
/// are replaced exactly as it does, and are there to be compared with it
/// (docs/results/importance.md).
enum class SubstituteChoice : int32_t {
  kBestScore = 0,
  kRandom = 1,       // any inactive expert at hand, drawn by a fixed hash
  kNearestGate = 2,  // the inactive expert at hand whose gate row is closest (cosine)
  kSkip = 3,         // nobody: the slot weighs nothing
};

struct RoutingRule {
  RoutingRuleKind kind = RoutingRuleKind::kTopK;
  // kExpertCache only:
  float alpha = 0;           // half width of the substitution band around beta; 0: plain top-k
  bool second_pass = false;  // also substitute by experts that other tokens force to be fetched
  // Caps that hold for every request over its lifetime (rows without request ids count as one
  // request): the substituted share of its slots, and of its routing mass, which is what the model
  // would have given the displaced experts.
  float max_slot_share = 1;
  float max_mass_share = 1;
  // Weights of a token with substitutes: true, every expert its own gate score, then the model's
  // normalization and scaling; false, a substitute gets what the expert it displaces had.
  bool own_score_weights = true;
  SubstituteChoice substitute = SubstituteChoice::kBestScore;
};

class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  virtual absl::string_view name() const = 0;
  /// OK, or why a model cannot be routed by this policy's rules. Asked at open.
  virtual absl::Status Check(const MoeModelSpec& model) const { return absl::OkStatus(); }
  /// The rule the router executes for this layer call.
  virtual RoutingRule Rule(const PolicyContext& context) = 0;
};

// ---------------------------------------------------------------------------------------------------
// Prefetch: what comes next?

struct PrefetchSnapshot {
  PolicyContext context;  // layer = the layer whose routing just became known
  int target_layer = 0;   // the layer predictions are wanted for (context.layer + 1, or 0 on wrap)
  RoutingView routing;
  absl::Span<const float> predicted_scores;  // [T, E'] of the next layer's gate, on this layer's
                                             // input or on a predicted one, or empty
  LayerResidency target;
  int64_t window_ns = 0;    // until the target layer asks, stalls excluded: measured
  int64_t transfer_ns = 0;  // one expert of the target layer on the link: measured
};

struct PrefetchCandidate {
  ExpertKey key;
  float score = 0;     // higher is fetched earlier
  int32_t tokens = 0;  // how many are expected to use it; 0: the policy cannot tell
};

class PrefetchPolicy {
 public:
  virtual ~PrefetchPolicy() = default;
  virtual absl::string_view name() const = 0;
  /// True when the router should also run the next layer's gate on this layer's input.
  virtual bool wants_next_gate() const { return false; }
  /// True when the scores should come from the next layer's input as the host predicts it from this
  /// layer's partial output, in decode steps that offer that (StepInfo::predict_next); in others
  /// they come from the next layer's gate as above.
  virtual bool wants_resident_forward() const { return false; }
  /// The experts to have in the fast tier for the target layer, best first, resident ones included
  /// (they are kept, not fetched again). The prefetcher admits what fits the compute window.
  virtual std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) = 0;
  /// Called with every layer's true routing, in layer order, before Rank of that layer.
  virtual void Observe(const PolicyContext& context, const RoutingView& routing) {}
};

// ---------------------------------------------------------------------------------------------------
// Residency: how many slots has a layer, and who leaves?

/// What prefetching can do for one layer, as measured.
struct PrefetchOutlook {
  double recall = 0;     // share of the layer's lookups that predictions name
  double transfers = 0;  // that fit the window before the layer asks
};

struct CapacitySnapshot {
  const MoeModelSpec* model = nullptr;
  int64_t slots = 0;                           // blocks of the pool
  absl::Span<const PrefetchOutlook> prefetch;  // [L], or empty: no prefetch
};

/// One expert that may be evicted.
struct VictimCandidate {
  ExpertKey key;
  int64_t last_used = 0;         // tick of the last layer call that used it; 0: never since it came
  int64_t inserted = 0;          // tick it became resident
  int64_t uses = 0;              // layer calls that used it since it came
  int32_t tokens = 0;            // tokens of the last call that used it
  bool unused_prefetch = false;  // brought by a prefetch and not used yet
};

struct VictimSnapshot {
  PolicyContext context;
  ExpertKey incoming;
  bool for_prefetch = false;                     // nobody waits for it: may be refused
  absl::Span<const VictimCandidate> candidates;  // never pinned ones
  bool dispensable = false;  // for_prefetch, and without it a CPU beside the fast tier computes it
};

class ResidencyPolicy {
 public:
  virtual ~ResidencyPolicy() = default;
  virtual absl::string_view name() const = 0;
  /// Slots of each layer; each in [0, E], the sum at most `slots`; what is left over belongs to no
  /// layer (ExpertStore::StartLoad). Asked at open, when the budget changes and when WantsCapacity.
  /// Default: uniform.
  virtual std::vector<int> Capacity(const CapacitySnapshot& snapshot);
  /// At the beginning of a step of a cache: true to be asked for new capacities. A layer that loses
  /// slots gives its surplus back at the end of its next call.
  virtual bool WantsCapacity(const PolicyContext& context) { return false; }
  /// Every layer call's true routing, before any victim of that call is asked.
  virtual void OnRouting(const PolicyContext& context, const RoutingView& routing) {}
  virtual void OnInsert(ExpertKey key, bool prefetch) {}
  virtual void OnEvict(ExpertKey key) {}
  /// Index into candidates (never empty), or negative to refuse, which only a prefetch may be.
  virtual int Victim(const VictimSnapshot& snapshot) = 0;
};

/// Index of the candidate unused for longest: the seam's default. Of those last used by the same
/// call the one with the fewest tokens, so that a call that needs more experts than there are slots
/// leaves its popular ones behind, then the first.
int LeastRecentlyUsed(absl::Span<const VictimCandidate> candidates);

/// Uniform capacities: `slots` dealt evenly, the remainder to the first layers, at most E each.
std::vector<int> UniformCapacity(const MoeModelSpec& model, int64_t slots);

// ---------------------------------------------------------------------------------------------------
// Precision: which version of an expert should be resident, and which is moved?

struct PrecisionSnapshot {
  PolicyContext context;  // layer unused: asked once an interval, at a step's end
  // Since the last call, per expert, [sum over layers of E]: tokens that selected it.
  absl::Span<const int64_t> selections;
  absl::Span<const uint8_t> high;           // 1: the high version is resident or on its way
  absl::Span<const int32_t> high_capacity;  // [L], experts of a layer that fit in high
};

struct PrecisionDecision {
  std::vector<ExpertKey> promote;  // best first
  std::vector<ExpertKey> demote;   // coldest first
};

/// Why bytes are about to be moved.
struct TransferSnapshot {
  PolicyContext context;
  ExpertKey key;
  bool prefetch = false;
  int32_t tokens = 0;        // tokens that want it (predicted ones for a prefetch)
  int64_t layer_tokens = 0;  // token x k slots of the layer
  int num_versions = 0;
  absl::Span<const int32_t> layer_counts;  // [E] tokens of every expert (likewise), or empty
};

class PrecisionPolicy {
 public:
  virtual ~PrecisionPolicy() = default;
  virtual absl::string_view name() const = 0;
  /// Experts to be high from the start, where every expert is resident in one of two versions: at
  /// most high_capacity[l] of layer l, which the first ones of the layer fill up. More than that,
  /// repetitions and experts that the model does not have are refused at open, as is the whole
  /// strategy when the policy cannot tell (an error). Asked once.
  virtual absl::StatusOr<std::vector<ExpertKey>> Initial(const MoeModelSpec& model,
                                                         absl::Span<const int32_t> high_capacity) {
    return std::vector<ExpertKey>();
  }
  virtual PrecisionDecision Decide(const PrecisionSnapshot& snapshot) { return {}; }
  /// What each expert is worth in high, in any unit, [sum over layers of E]; empty: its selections
  /// since the last decision. Asked when a smaller budget demotes some at once: of each layer those
  /// that are worth least.
  virtual std::vector<double> Worth(const PrecisionSnapshot& snapshot) { return {}; }
  /// The version (index into the strategy's versions, 0 = most bits) a load should bring.
  virtual int TransferVersion(const TransferSnapshot& snapshot) { return 0; }
  /// A cache of several versions, after a layer call: true when lower versions that the call used
  /// should be replaced by the best, each in its own block, behind the demand loads and prefetches.
  virtual bool Upgrades(const PolicyContext& context) { return false; }
};

// ---------------------------------------------------------------------------------------------------
// Placement: what to do with a miss?

enum class Placement : int32_t { kLoad = 0, kCpu = 1, kLow = 2 };

struct MissView {
  int32_t expert = 0;
  int32_t tokens = 0;
  float mass = 0;             // summed routing weight
  bool low_resident = false;  // a lower version is usable
  int64_t bytes = 0;          // of the transfer
  int64_t load_ns = 0;        // modelled
  int64_t cpu_ns = 0;         // modelled; negative: no CPU executor beside the fast tier
  bool arriving = false;      // a prefetch of it is on its way; load_ns is what is left, about
};

struct PlacementSnapshot {
  PolicyContext context;
  absl::Span<const MissView> misses;
  int64_t link_busy_ns = 0;  // modelled, about: until what is under way has arrived
};

class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  virtual absl::string_view name() const = 0;
  /// One placement a miss, in order. An expert that is arriving and given to the CPU goes on
  /// arriving.
  virtual std::vector<Placement> Place(const PlacementSnapshot& snapshot) = 0;
  /// True when experts that the CPU computed should be brought behind the call, where the link is
  /// idle and the residency policy finds them worth more than whom they replace.
  virtual bool Backfills(const PolicyContext& context) { return false; }
  /// The same while the layer has slots that nobody holds. Where nothing of a cold cache is loaded
  /// because the CPU is always earlier, it would stay empty.
  virtual bool BackfillsFreeSlots(const PolicyContext& context) { return Backfills(context); }
};

}  // namespace moert

#endif  // MOERT_POLICY_H_
