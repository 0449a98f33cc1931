#include <algorithm>
#include <vector>

#include "plan/placement_rule.h"
#include "policy_seams.h"

namespace moert::capi {
namespace {

static_assert(static_cast<int32_t>(Placement::kCpu) == MOERT_COMPUTE_ON_CPU);

class HostPlacement final : public PlacementPolicy, Adapter {
 public:
  HostPlacement(std::shared_ptr<HostPolicies> host, std::unique_ptr<PlacementPolicy> fallback)
      : Adapter(std::move(host)), fallback_(std::move(fallback)) {
    traits_ = TraitsOf(fallback_);
    traits_.promise = PromiseOf(fallback_.get());
    traits_.max_low_share = MaxLowShare(fallback_.get());
    if (c().placement != nullptr) {
      // The host loads or computes on the CPU, and never answers low.
      traits_.promise = std::max(traits_.promise, Promise::kFaithful);
      traits_.needs_host = true;
    }
    PolicyContext decode;
    decode.phase = Phase::kDecode;
    traits_.backfills = BackfillsIn(decode, false, Backfills(fallback_.get()));
  }
  PolicyTraits traits() const override { return traits_; }
  int64_t StateBytes(const PolicyScope& scope) const override {
    return StateOf(
        fallback_,
        scope.model->max_experts() * int64_t{sizeof(moert_miss) + sizeof(moert_placement)}, scope);
  }
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
    if (BackfillsIn(context, false, own == Backfill::kAlways)) return Backfill::kAlways;
    return BackfillsIn(context, true, own != Backfill::kNever) ? Backfill::kFreeSlots
                                                               : Backfill::kNever;
  }
  bool BackfillsIn(const PolicyContext& context, bool free_slots, bool own) const {
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

std::unique_ptr<PlacementPolicy> AdaptPlacement(std::shared_ptr<HostPolicies> host,
                                                std::unique_ptr<PlacementPolicy> fallback) {
  return std::make_unique<HostPlacement>(std::move(host), std::move(fallback));
}

}  // namespace moert::capi
