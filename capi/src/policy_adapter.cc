#include "policy_adapter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "guard.h"
#include "layer_spec.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

static_assert(static_cast<int32_t>(RoutingRuleKind::kExpertCache) == MOERT_RULE_EXPERT_CACHE);
static_assert(static_cast<int32_t>(Placement::kCpu) == MOERT_COMPUTE_ON_CPU);

moert_policy_context ToC(const PolicyContext& context) {
  moert_policy_context c{};
  c.struct_size = sizeof(c);
  c.step = context.step;
  c.now_ns = context.now_ns;
  c.request_ids = context.request_ids.empty() ? nullptr : context.request_ids.data();
  c.num_request_ids = static_cast<int64_t>(context.request_ids.size());
  c.layer = context.layer;
  c.phase = static_cast<moert_phase>(context.phase);
  return c;
}

moert_routing_view ToC(const RoutingView& routing) {
  moert_routing_view c{};
  c.struct_size = sizeof(c);
  c.tokens = routing.tokens;
  c.ids = routing.ids.data();
  c.weights = routing.weights.data();
  c.scores = routing.scores.empty() ? nullptr : routing.scores.data();
  c.counts = routing.counts.data();
  c.top_k = routing.top_k;
  c.num_experts = static_cast<int32_t>(routing.counts.size());
  return c;
}

moert_precision_snapshot ToC(const PrecisionSnapshot& snapshot,
                             const moert_policy_context* context) {
  moert_precision_snapshot c{};
  c.struct_size = sizeof(c);
  c.context = context;
  c.selections = snapshot.selections.data();
  c.high = snapshot.high.data();
  c.total_experts = static_cast<int64_t>(snapshot.selections.size());
  c.high_capacity = snapshot.high_capacity.data();
  c.num_layers = static_cast<int64_t>(snapshot.high_capacity.size());
  return c;
}

template <typename P>
PolicyTraits TraitsOf(const std::unique_ptr<P>& policy) {
  return policy == nullptr ? PolicyTraits{} : policy->traits();
}

/// What all adapters share: calls into the host that count as failed when it fails or throws.
class Adapter {
 public:
  explicit Adapter(std::shared_ptr<HostPolicies> host) : host_(std::move(host)) {}

 protected:
  const moert_policies& c() const { return host_->c; }

  /// True when the host has decided. `call` is not asked for when the host has no such member.
  template <typename Member, typename Call>
  bool Decided(Member member, Call call) const {
    if (member == nullptr) return false;
    try {
      if (call() == MOERT_OK) return true;
    } catch (...) {  // the contract forbids it; dying for it helps nobody
    }
    ++host_->failures;
    return false;
  }
  template <typename Member, typename Call>
  void Tell(Member member, Call call) {
    if (member == nullptr) return;
    try {
      call();
    } catch (...) {
      ++host_->failures;
    }
  }
  void CountFailure() { ++host_->failures; }
  /// A question whose failure is the host's answer.
  template <typename Call>
  absl::Status Ask(const char* what, Call call) const {
    moert_failure failure;
    try {
      return FromCallback(call(&failure), failure, what);
    } catch (...) {
      return absl::InternalError(absl::StrCat(what, ": the callback threw"));
    }
  }

 private:
  const std::shared_ptr<HostPolicies> host_;
};

class HostRouting final : public RoutingPolicy, Adapter {
 public:
  HostRouting(std::shared_ptr<HostPolicies> host, std::unique_ptr<RoutingPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {}
  PolicyTraits traits() const override {
    PolicyTraits traits = TraitsOf(fallback_);
    traits.lossy = traits.needs_host = true;
    return traits;
  }
  absl::Status Check(const MoeModelSpec& model) const override {
    if (fallback_ != nullptr) MOERT_RETURN_IF_ERROR(fallback_->Check(model));
    if (c().routing_check == nullptr) return absl::OkStatus();
    std::vector<moert_layer_spec> layers;
    for (const MoeLayerSpec& layer : model.layers) {
      layers.push_back(capi::ToC(layer));
      layers.back().struct_size = sizeof(moert_layer_spec);
    }
    return Ask("routing_check", [&](moert_failure* failure) {
      return c().routing_check(c().user_data, layers.data(), static_cast<int32_t>(layers.size()),
                               failure);
    });
  }
  RoutingRule Rule(const PolicyContext& context) override {
    const RoutingRule own = fallback_ == nullptr ? RoutingRule{} : fallback_->Rule(context);
    const moert_policy_context where = ToC(context);
    moert_routing_rule rule{};
    rule.struct_size = sizeof(rule);
    rule.kind = static_cast<moert_rule>(own.kind);
    rule.alpha = own.alpha;
    rule.max_slot_share = own.max_slot_share;
    rule.max_mass_share = own.max_mass_share;
    rule.second_pass = own.second_pass;
    rule.own_score_weights = own.own_score_weights;
    if (!Decided(c().routing_rule,
                 [&] { return c().routing_rule(c().user_data, &where, &rule); })) {
      return own;
    }
    const bool legal = (rule.kind == MOERT_RULE_TOPK || rule.kind == MOERT_RULE_EXPERT_CACHE) &&
                       rule.alpha >= 0 && rule.alpha <= 1 && rule.max_slot_share >= 0 &&
                       rule.max_slot_share <= 1 && rule.max_mass_share >= 0 &&
                       rule.max_mass_share <= 1;
    if (!legal) {
      CountFailure();
      return own;
    }
    RoutingRule decided = own;
    decided.kind = static_cast<RoutingRuleKind>(rule.kind);
    decided.alpha = rule.alpha;
    decided.max_slot_share = rule.max_slot_share;
    decided.max_mass_share = rule.max_mass_share;
    decided.second_pass = rule.second_pass != 0;
    decided.own_score_weights = rule.own_score_weights != 0;
    return decided;
  }

 private:
  const std::unique_ptr<RoutingPolicy> fallback_;
};

class HostPrefetch final : public PrefetchPolicy, Adapter {
 public:
  HostPrefetch(std::shared_ptr<HostPolicies> host, std::unique_ptr<PrefetchPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {}
  PolicyTraits traits() const override {
    PolicyTraits traits = TraitsOf(fallback_);
    traits.next_gate = traits.next_gate || c().prefetch_wants_next_gate != 0;
    traits.resident_forward = traits.resident_forward || c().prefetch_wants_resident_forward != 0;
    return traits;
  }
  void Observe(const LayerEvent& event) override {
    if (fallback_ != nullptr) fallback_->Observe(event);
  }
  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    const moert_policy_context context = ToC(snapshot.context);
    const moert_routing_view routing = ToC(snapshot.routing);
    moert_prefetch_snapshot s{};
    s.struct_size = sizeof(s);
    s.context = &context;
    s.routing = &routing;
    s.predicted_scores =
        snapshot.predicted_scores.empty() ? nullptr : snapshot.predicted_scores.data();
    s.resident = snapshot.target.resident.data();
    s.usable = snapshot.target.usable.data();
    s.in_flight = snapshot.target.in_flight.data();
    s.target_layer = snapshot.target_layer;
    s.target_experts = static_cast<int32_t>(snapshot.target.resident.size());
    s.target_capacity = snapshot.target.capacity;
    s.window_ns = snapshot.window_ns;
    s.transfer_ns = snapshot.transfer_ns;
    ranked_.assign(static_cast<size_t>(s.target_experts), {});
    int32_t count = 0;
    const bool decided = Decided(c().prefetch_rank, [&] {
      return c().prefetch_rank(c().user_data, &s, ranked_.data(), s.target_experts, &count);
    });
    if (decided && count >= 0 && count <= s.target_experts) {
      std::vector<PrefetchCandidate> ranked;
      for (int32_t i = 0; i < count; ++i) {
        const moert_prediction& p = ranked_[static_cast<size_t>(i)];
        ranked.push_back({{s.target_layer, p.expert}, p.score, p.tokens});
      }
      return ranked;
    }
    if (decided) CountFailure();
    return fallback_ == nullptr ? std::vector<PrefetchCandidate>{} : fallback_->Rank(snapshot);
  }

 private:
  const std::unique_ptr<PrefetchPolicy> fallback_;
  std::vector<moert_prediction> ranked_;
};

/// Also the seam that hears every routing, whatever the strategy.
class HostResidency final : public ResidencyPolicy, Adapter {
 public:
  HostResidency(std::shared_ptr<HostPolicies> host, std::unique_ptr<ResidencyPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {}

  PolicyTraits traits() const override { return TraitsOf(fallback_); }
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    CapacitySnapshot asked = snapshot;
    if (snapshot.step != nullptr && c().residency_wants_capacity != nullptr) {
      const moert_policy_context where = ToC(*snapshot.step);
      int32_t wants = 0;
      const bool decided = Decided(c().residency_wants_capacity, [&] {
        return c().residency_wants_capacity(c().user_data, &where, &wants);
      });
      if (decided && wants == 0) return {};
      if (decided) asked.step = nullptr;  // an answer is wanted
    }
    std::vector<int> own = fallback_ == nullptr ? std::vector<int>() : fallback_->Capacity(asked);
    if (own.empty() && asked.step != nullptr) return {};
    if (own.empty()) own = UniformCapacity(*snapshot.model, snapshot.slots);
    std::vector<int32_t> capacity(own.begin(), own.end());
    outlook_.clear();
    for (const PrefetchOutlook& o : snapshot.prefetch) outlook_.push_back({o.recall, o.transfers});
    moert_capacity_snapshot s{};
    s.struct_size = sizeof(s);
    s.slots = snapshot.slots;
    s.num_layers = static_cast<int64_t>(capacity.size());
    s.prefetch = outlook_.empty() ? nullptr : outlook_.data();
    const bool decided = Decided(c().residency_capacity, [&] {
      return c().residency_capacity(c().user_data, &s, capacity.data());
    });
    return decided ? std::vector<int>(capacity.begin(), capacity.end()) : own;
  }
  void Observe(const LayerEvent& event) override {
    if (fallback_ != nullptr) fallback_->Observe(event);
    const ExpertKey key = event.key;
    switch (event.kind) {
      case LayerEvent::Kind::kRouted: {
        const moert_policy_context where = ToC(event.context);
        const moert_routing_view view = ToC(event.routing);
        Tell(c().observe, [&] { c().observe(c().user_data, &where, &view); });
        return;
      }
      case LayerEvent::Kind::kInserted:
        Tell(c().residency_insert,
             [&] { c().residency_insert(c().user_data, key.layer, key.expert, event.prefetched); });
        return;
      case LayerEvent::Kind::kEvicted:
        Tell(c().residency_evict,
             [&] { c().residency_evict(c().user_data, key.layer, key.expert); });
        return;
    }
  }
  int Victim(const VictimSnapshot& snapshot) override {
    candidates_.clear();
    for (const VictimCandidate& candidate : snapshot.candidates) {
      moert_candidate v{};
      v.last_used = candidate.last_used;
      v.inserted = candidate.inserted;
      v.uses = candidate.uses;
      v.layer = candidate.key.layer;
      v.expert = candidate.key.expert;
      v.unused_prefetch = candidate.unused_prefetch;
      v.tokens = candidate.tokens;
      candidates_.push_back(v);
    }
    const moert_policy_context context = ToC(snapshot.context);
    moert_victim_snapshot s{};
    s.struct_size = sizeof(s);
    s.context = &context;
    s.candidates = candidates_.data();
    s.num_candidates = static_cast<int64_t>(candidates_.size());
    s.incoming_layer = snapshot.incoming.layer;
    s.incoming_expert = snapshot.incoming.expert;
    s.for_prefetch = snapshot.for_prefetch;
    s.dispensable = snapshot.dispensable;
    int64_t victim = -1;
    if (Decided(c().residency_victim,
                [&] { return c().residency_victim(c().user_data, &s, &victim); })) {
      // Out of range: the store takes its default and counts.
      return static_cast<int>(std::clamp<int64_t>(victim, -1, INT32_MAX));
    }
    return fallback_ == nullptr ? LeastRecentlyUsed(snapshot.candidates)
                                : fallback_->Victim(snapshot);
  }

 private:
  const std::unique_ptr<ResidencyPolicy> fallback_;
  std::vector<moert_candidate> candidates_;
  std::vector<moert_prefetch_outlook> outlook_;
};

class HostPrecision final : public PrecisionPolicy, Adapter {
 public:
  HostPrecision(std::shared_ptr<HostPolicies> host, std::unique_ptr<PrecisionPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {}

  PolicyTraits traits() const override {
    PolicyTraits traits = TraitsOf(fallback_);
    const bool decides = c().precision_initial != nullptr || c().precision_decide != nullptr ||
                         c().precision_transfer != nullptr || c().precision_upgrades != nullptr;
    if (decides) traits.lossy = traits.needs_host = true;
    return traits;
  }
  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    switch (snapshot.moment) {
      case PrecisionMoment::kOpen:
        return Initial(snapshot);
      case PrecisionMoment::kInterval:
        return Transitions(snapshot);
      case PrecisionMoment::kShrink:
        break;
    }
    return Worth(snapshot);
  }
  int TransferVersion(const TransferSnapshot& snapshot) override {
    const int own = fallback_ == nullptr ? PrecisionPolicy::TransferVersion(snapshot)
                                         : fallback_->TransferVersion(snapshot);
    if (snapshot.resident >= 0) return Upgraded(snapshot, own);
    const moert_policy_context context = ToC(snapshot.context);
    moert_transfer_snapshot s{};
    s.struct_size = sizeof(s);
    s.context = &context;
    s.layer_tokens = snapshot.layer_tokens;
    s.expert = snapshot.key.expert;
    s.tokens = snapshot.tokens;
    s.prefetch = snapshot.prefetch;
    s.num_versions = snapshot.num_versions;
    s.layer_counts = snapshot.layer_counts.empty() ? nullptr : snapshot.layer_counts.data();
    s.num_experts = static_cast<int64_t>(snapshot.layer_counts.size());
    int32_t version = 0;
    const bool decided = Decided(c().precision_transfer, [&] {
      return c().precision_transfer(c().user_data, &s, &version);
    });
    if (decided && version >= 0 && version < snapshot.num_versions) return version;
    if (decided) CountFailure();
    return own;
  }

 private:
  absl::StatusOr<PrecisionDecision> Own(const PrecisionSnapshot& snapshot) {
    return fallback_ == nullptr ? PrecisionDecision() : fallback_->Decide(snapshot);
  }

  absl::StatusOr<PrecisionDecision> Initial(const PrecisionSnapshot& snapshot) {
    if (c().precision_initial == nullptr) return Own(snapshot);
    const absl::Span<const int32_t> capacity = snapshot.high_capacity;
    promote_.assign(snapshot.selections.size(), 0);
    int64_t count = 0;
    MOERT_RETURN_IF_ERROR(Ask("precision_initial", [&](moert_failure* failure) {
      return c().precision_initial(
          c().user_data, capacity.data(), static_cast<int32_t>(capacity.size()),
          static_cast<int64_t>(promote_.size()), promote_.data(), &count, failure);
    }));
    PrecisionDecision decision;
    if (Keys(*snapshot.context.model, promote_, count, &decision.promote)) return decision;
    return absl::InvalidArgumentError(
        absl::StrCat("precision_initial: ", count, " indices, legal are at most ", promote_.size(),
                     ", each from 0 to ", static_cast<int64_t>(promote_.size()) - 1));
  }

  absl::StatusOr<PrecisionDecision> Transitions(const PrecisionSnapshot& snapshot) {
    const moert_policy_context context = ToC(snapshot.context);
    const moert_precision_snapshot s = ToC(snapshot, &context);
    promote_.assign(static_cast<size_t>(s.total_experts), 0);
    demote_.assign(static_cast<size_t>(s.total_experts), 0);
    int64_t promotes = 0, demotes = 0;
    const bool decided = Decided(c().precision_decide, [&] {
      return c().precision_decide(c().user_data, &s, promote_.data(), &promotes, demote_.data(),
                                  &demotes);
    });
    PrecisionDecision decision;
    if (decided && Keys(*snapshot.context.model, promote_, promotes, &decision.promote) &&
        Keys(*snapshot.context.model, demote_, demotes, &decision.demote)) {
      return decision;
    }
    if (decided) CountFailure();
    return Own(snapshot);
  }

  absl::StatusOr<PrecisionDecision> Worth(const PrecisionSnapshot& snapshot) {
    const moert_policy_context context = ToC(snapshot.context);
    const moert_precision_snapshot s = ToC(snapshot, &context);
    PrecisionDecision decision;
    decision.worth.resize(snapshot.selections.size());
    if (Decided(c().precision_worth,
                [&] { return c().precision_worth(c().user_data, &s, decision.worth.data()); })) {
      return decision;
    }
    // Another's worths say nothing of a hot set that the host decides.
    return c().precision_decide != nullptr ? PrecisionDecision() : Own(snapshot);
  }

  int Upgraded(const TransferSnapshot& snapshot, int own) {
    const moert_policy_context where = ToC(snapshot.context);
    int32_t upgrades = own < snapshot.resident;
    const bool decided = Decided(c().precision_upgrades, [&] {
      return c().precision_upgrades(c().user_data, &where, &upgrades);
    });
    if (!decided) return own;
    return upgrades != 0 ? 0 : snapshot.resident;
  }

  /// Indices over all experts, layer by layer, as keys. False when one is out of range.
  static bool Keys(const MoeModelSpec& model, const std::vector<int64_t>& indices, int64_t count,
                   std::vector<ExpertKey>* keys) {
    if (count < 0 || count > static_cast<int64_t>(indices.size())) return false;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = indices[static_cast<size_t>(i)];
      int layer = 0;
      while (rest >= 0 && layer < model.num_layers() && rest >= model.layers[layer].num_experts) {
        rest -= model.layers[layer++].num_experts;
      }
      if (rest < 0 || layer == model.num_layers()) return false;
      keys->push_back({layer, static_cast<int32_t>(rest)});
    }
    return true;
  }

  const std::unique_ptr<PrecisionPolicy> fallback_;
  std::vector<int64_t> promote_, demote_;
};

class HostPlacement final : public PlacementPolicy, Adapter {
 public:
  HostPlacement(std::shared_ptr<HostPolicies> host, std::unique_ptr<PlacementPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {
    traits_ = fallback_ == nullptr ? PolicyTraits{.lossy = false} : fallback_->traits();
    if (c().placement != nullptr) traits_.lossy = traits_.needs_host = true;
    PolicyContext decode;
    decode.phase = Phase::kDecode;
    traits_.backfills = Backfills(decode, false, traits_.backfills);
  }
  PolicyTraits traits() const override { return traits_; }
  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    PlacementDecision decision{std::vector<Placement>(snapshot.misses.size(), Placement::kLoad)};
    if (fallback_ != nullptr) decision = fallback_->Place(snapshot);
    decision.backfill = BackfillIn(snapshot.context, decision.backfill);
    misses_.clear();
    for (const MissView& miss : snapshot.misses) {
      moert_miss m{};
      m.bytes = miss.bytes;
      m.load_ns = miss.load_ns;
      m.cpu_ns = miss.cpu_ns;
      m.expert = miss.expert;
      m.tokens = miss.tokens;
      m.mass = miss.mass;
      m.arriving = miss.arriving;
      misses_.push_back(m);
    }
    decisions_.assign(misses_.size(), MOERT_LOAD_MISS);
    const moert_policy_context context = ToC(snapshot.context);
    moert_placement_snapshot s{};
    s.struct_size = sizeof(s);
    s.context = &context;
    s.misses = misses_.data();
    s.num_misses = static_cast<int64_t>(misses_.size());
    s.link_busy_ns = snapshot.link_busy_ns;
    const bool decided =
        Decided(c().placement, [&] { return c().placement(c().user_data, &s, decisions_.data()); });
    const bool legal = std::all_of(decisions_.begin(), decisions_.end(), [](moert_placement p) {
      return p == MOERT_LOAD_MISS || p == MOERT_COMPUTE_ON_CPU;
    });
    if (decided && legal) {
      decision.placements.resize(decisions_.size());
      std::transform(decisions_.begin(), decisions_.end(), decision.placements.begin(),
                     [](moert_placement p) { return static_cast<Placement>(p); });
      return decision;
    }
    if (decided) CountFailure();
    return decision;
  }

 private:
  Backfill BackfillIn(const PolicyContext& context, Backfill own) const {
    if (Backfills(context, false, own == Backfill::kAlways)) return Backfill::kAlways;
    return Backfills(context, true, own != Backfill::kNever) ? Backfill::kFreeSlots
                                                             : Backfill::kNever;
  }
  bool Backfills(const PolicyContext& context, bool free_slots, bool own) const {
    const moert_policy_context where = ToC(context);
    int32_t backfills = own;
    const bool decided = Decided(c().placement_backfills, [&] {
      return c().placement_backfills(c().user_data, &where, free_slots, &backfills);
    });
    return decided ? backfills != 0 : own;
  }

  const std::unique_ptr<PlacementPolicy> fallback_;
  PolicyTraits traits_;
  std::vector<moert_miss> misses_;
  std::vector<moert_placement> decisions_;
};

}  // namespace

absl::Status InstallPolicies(std::shared_ptr<HostPolicies> policies, Strategy* strategy) {
  const moert_policies& c = policies->c;
  if (c.routing_rule != nullptr) {
    strategy->routing = std::make_unique<HostRouting>(policies, std::move(strategy->routing));
  }
  if (c.prefetch_rank != nullptr) {
    strategy->prefetch = std::make_unique<HostPrefetch>(policies, std::move(strategy->prefetch));
  }
  if (c.observe != nullptr || c.residency_capacity != nullptr || c.residency_victim != nullptr ||
      c.residency_insert != nullptr || c.residency_evict != nullptr ||
      c.residency_wants_capacity != nullptr) {
    strategy->residency = std::make_unique<HostResidency>(policies, std::move(strategy->residency));
  }
  if (c.precision_initial != nullptr || c.precision_decide != nullptr ||
      c.precision_worth != nullptr || c.precision_transfer != nullptr ||
      c.precision_upgrades != nullptr) {
    strategy->precision = std::make_unique<HostPrecision>(policies, std::move(strategy->precision));
  }
  if (c.placement != nullptr || c.placement_backfills != nullptr) {
    strategy->placement = std::make_unique<HostPlacement>(policies, std::move(strategy->placement));
  }
  return absl::OkStatus();
}

}  // namespace moert::capi

extern "C" void moert_policies_init(moert_policies* policies, uint64_t size) {
  moert::capi::InitStruct(policies, size, moert_policies{});
}
