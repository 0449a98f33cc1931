#include <algorithm>
#include <vector>

#include "policy_seams.h"

namespace moert::capi {
namespace {

/// Also the seam that receives every routing, whatever the strategy.
class HostResidency final : public ResidencyPolicy, Adapter {
 public:
  HostResidency(std::shared_ptr<HostPolicies> host, std::unique_ptr<ResidencyPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {}

  PolicyTraits traits() const override { return TraitsOf(fallback_); }
  int64_t StateBytes(const PolicyScope& scope) const override {
    return StateOf(fallback_,
                   scope.model->total_experts() * int64_t{sizeof(moert_candidate)} +
                       scope.model->num_layers() * int64_t{sizeof(moert_prefetch_outlook)},
                   scope);
  }
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
      // Out of range: the store uses its default and counts the fallback.
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

}  // namespace

std::unique_ptr<ResidencyPolicy> AdaptResidency(std::shared_ptr<HostPolicies> host,
                                                std::unique_ptr<ResidencyPolicy> fallback) {
  return std::make_unique<HostResidency>(std::move(host), std::move(fallback));
}

}  // namespace moert::capi
