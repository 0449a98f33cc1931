// Two versions with a pool each: as many experts are high as there are high blocks, counted for
// each layer or for all layers together.
#include <algorithm>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "store/block_pool.h"
#include "store/resident_versions.h"

namespace moert {
namespace {

constexpr int kHigh = 0;  // indices of the versions, and of their pools
constexpr int kLow = 1;

class HotSet final : public ResidentVersions {
 public:
  HotSet(const MoeModelSpec* model, PrecisionPolicy* policy, const TransitionOptions& options,
         VersionedStore* store)
      : ResidentVersions(model, policy, options, store),
        slots_(store->pool(kHigh).limit()),
        low_slots_(store->pool(kLow).limit()) {}

  absl::Status Resize(int64_t high, int64_t slots, int64_t low_slots) override {
    // A failure leaves the old size; experts that were demoted by then are promoted again later.
    std::vector<int32_t> before = Dealt(high);
    capacity_.swap(before);
    const int64_t old_slots = slots_, old_low_slots = low_slots_;
    absl::Cleanup keep = [&] {
      capacity_.swap(before);
      SetSlots(old_slots, old_low_slots);
    };
    ForgetQueued();
    // Blocks above a lowered limit stay taken until they are given back. Their memory then pays for
    // the low blocks that the demotions below take.
    SetSlots(slots, low_slots);
    // An expert whose switch failed keeps its old version: no reason to refuse a budget.
    (void)Drain();
    const std::vector<double> worth = WorthInHigh();
    const std::vector<int64_t> room = Room();
    for (int l = 0; l < model_->num_layers(); l = NextGroup(l)) {
      std::vector<ExpertKey> leaving = LeastFirst(l, worth);
      leaving.resize(std::max<int64_t>(0, -room[GroupOf(l)]));
      for (const ExpertKey key : leaving) {
        MOERT_ASSIGN_OR_RETURN(bool demoted, DemoteNow(key, 0));
        if (!demoted) {
          UseHighBlocks();
          MOERT_ASSIGN_OR_RETURN(demoted, DemoteNow(key, 0));
        }
        if (!demoted) {
          return absl::ResourceExhaustedError("no spare block to demote an expert into");
        }
      }
    }
    SetSlots(slots, low_slots);
    std::move(keep).Cancel();
    return absl::OkStatus();
  }

  bool Aim(int64_t high, int64_t slots, int64_t low_slots) override {
    ForgetQueued();
    capacity_ = Dealt(high);
    SetSlots(slots, low_slots);  // as in Resize: freed high blocks pay for new low ones
    const std::vector<double> worth = WorthInHigh();
    std::vector<int64_t> room = Room();
    for (int l = 0; l < model_->num_layers(); l = NextGroup(l)) {
      int64_t& left = room[GroupOf(l)];
      for (const ExpertKey key : LeastFirst(l, worth)) {
        if (left >= 0) break;
        if (Moving(key)) continue;  // it may be demoted once its transition has ended
        Queue(key, 0);
        ++left;
      }
    }
    return store_->pool(kHigh).taken() <= slots;
  }

 private:
  void SetRoom(int64_t high) override { capacity_ = Dealt(high); }

  /// After the budget grew, more low blocks are taken than planned until promotions have caught up.
  /// Until then high blocks of as many bytes are not available and hold no memory.
  void FitPools() override {
    BlockPool& high = store_->pool(kHigh);
    const BlockPool& low = store_->pool(kLow);
    const int64_t beyond = std::max<int64_t>(0, low.taken() - low_slots_) * low.bytes(0);
    const int64_t paying = (beyond + high.bytes(0) - 1) / high.bytes(0);
    high.SetLimit(std::max<int64_t>(0, slots_ - paying));
  }
  void SetSlots(int64_t slots, int64_t low_slots) {
    slots_ = slots;
    low_slots_ = low_slots;
    store_->pool(kLow).SetLimit(low_slots);
    FitPools();
  }

  /// The policy's initial high set, filled up with each layer's first experts.
  absl::Status ChooseInitial() override {
    PolicyContext context;
    context.model = model_;
    MOERT_ASSIGN_OR_RETURN(const PrecisionDecision initial, Ask(context, PrecisionMoment::kOpen));
    std::vector<int64_t> room = Room();
    for (const ExpertKey key : initial.promote) {
      if (!Legal(key)) {
        return InvalidArgument(
            "initially high: layer {} expert {} does not exist in a model of {} MoE layers",
            key.layer, key.expert, model_->num_layers());
      }
      if (RungOf(key)) {
        return InvalidArgument("initially high: layer {} expert {} is named twice", key.layer,
                               key.expert);
      }
      if (room[GroupOf(key.layer)]-- == 0) {
        return InvalidArgument(
            "initially high: more experts of layer {} than the {} the budget holds", key.layer,
            capacity_[key.layer]);
      }
      SetRung(key, 1);
    }
    for (int l = 0; l < model_->num_layers(); ++l) {
      for (int e = 0; e < model_->layers[l].num_experts; ++e) {
        const ExpertKey key{l, e};
        if (!RungOf(key)) SetRung(key, room[GroupOf(l)]-- > 0 ? 1 : 0);
      }
    }
    return absl::OkStatus();
  }

  void Decide(const PrecisionDecision& decision) override {
    // No group may ever exceed its capacity: excess promotions are dropped and counted.
    std::vector<int64_t> room = Room();
    for (const ExpertKey key : decision.demote) {
      if (!Legal(key) || RungOf(key) == 0 || Moving(key)) {
        ++stats_.policy_fallbacks;
        continue;
      }
      ++room[GroupOf(key.layer)];
      Queue(key, 0);
    }
    for (const ExpertKey key : decision.promote) {
      if (!Legal(key) || RungOf(key) == 1 || Moving(key) || room[GroupOf(key.layer)] <= 0) {
        ++stats_.policy_fallbacks;
        continue;
      }
      --room[GroupOf(key.layer)];
      Queue(key, 1);
    }
  }

  /// Lets demotions take more low blocks than planned. After the budget grew, fewer experts are
  /// high than it has room for, and the others take more low blocks than the pool's limit. Unused
  /// high blocks, which are no smaller, pay for the low blocks.
  void UseHighBlocks() {
    store_->pool(kHigh).SetLimit(0);
    store_->pool(kLow).SetLimit(model_->total_experts());
  }
  // A group is the layers that share high blocks: all layers, or one. Its first layer names it.
  int GroupOf(int layer) const { return options_.shared ? 0 : layer; }
  int NextGroup(int layer) const { return options_.shared ? model_->num_layers() : layer + 1; }
  /// How many more experts of each group may be high; negative: how many have to be demoted.
  std::vector<int64_t> Room() const {
    std::vector<int64_t> room(model_->num_layers());
    for (int l = 0; l < model_->num_layers(); ++l) {
      const auto begin = rung_.begin() + first_[l];
      room[GroupOf(l)] +=
          capacity_[l] - std::count(begin, begin + model_->layers[l].num_experts, 1);
    }
    return room;
  }
  /// The worth of being high, by the policy, or else by the selections.
  std::vector<double> WorthInHigh() {
    PolicyContext context;
    context.model = model_;
    const absl::StatusOr<PrecisionDecision> decision = Ask(context, PrecisionMoment::kShrink);
    const std::vector<double> worth = decision.ok() ? decision->worth : std::vector<double>();
    const bool any_nan = std::any_of(worth.begin(), worth.end(), [](double w) { return w != w; });
    if (worth.size() == selections_.size() && !any_nan) return worth;
    stats_.policy_fallbacks += !decision.ok() || !worth.empty();
    return {selections_.begin(), selections_.end()};
  }
  /// A group's high experts, those worth least first; among equals the higher layer and index
  /// first.
  std::vector<ExpertKey> LeastFirst(int group, absl::Span<const double> worth) const {
    std::vector<ExpertKey> members;
    for (int l = NextGroup(group) - 1; l >= group; --l) {
      for (int32_t e = model_->layers[l].num_experts - 1; e >= 0; --e) {
        if (RungOf({l, e}) == 1) members.push_back({l, e});
      }
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](ExpertKey a, ExpertKey b) { return worth[Index(a)] < worth[Index(b)]; });
    return members;
  }

  // The plan's blocks of each pool.
  int64_t slots_;
  int64_t low_slots_;
};

}  // namespace

std::unique_ptr<VersionManager> MakeHotSet(const MoeModelSpec* model, PrecisionPolicy* policy,
                                           const TransitionOptions& options,
                                           VersionedStore* store) {
  return std::make_unique<HotSet>(model, policy, options, store);
}

}  // namespace moert
