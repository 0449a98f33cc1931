#include <vector>

#include "policy_seams.h"
#include "prefetch/prefetch_rule.h"

namespace moert::capi {
namespace {

class HostPrefetch final : public PrefetchPolicy, Adapter {
 public:
  HostPrefetch(std::shared_ptr<HostPolicies> host, std::unique_ptr<PrefetchPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {}
  PolicyTraits traits() const override {
    PolicyTraits traits = TraitsOf(fallback_);
    traits.next_gate = WantsNextGate(fallback_.get()) || c().prefetch_wants_next_gate != 0;
    traits.resident_forward =
        WantsResidentForward(fallback_.get()) || c().prefetch_wants_resident_forward != 0;
    return traits;
  }
  int64_t StateBytes(const PolicyScope& scope) const override {
    return StateOf(fallback_,
                   scope.model->max_experts() *
                       int64_t{sizeof(moert_prediction) + 3 * sizeof(PrefetchCandidate)},
                   scope);
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
    ranked_.assign(s.target_experts, {});
    int32_t count = 0;
    const bool decided = Decided(c().prefetch_rank, [&] {
      return c().prefetch_rank(c().user_data, &s, ranked_.data(), s.target_experts, &count);
    });
    if (decided && count >= 0 && count <= s.target_experts) {
      std::vector<PrefetchCandidate> ranked;
      for (int32_t i = 0; i < count; ++i) {
        const moert_prediction& p = ranked_[i];
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

}  // namespace

std::unique_ptr<PrefetchPolicy> AdaptPrefetch(std::shared_ptr<HostPolicies> host,
                                              std::unique_ptr<PrefetchPolicy> fallback) {
  return std::make_unique<HostPrefetch>(std::move(host), std::move(fallback));
}

}  // namespace moert::capi
