// The update pipeline of DynaExq (Sec. 4.4): a queue of promotions and one of demotions, admission
// by a free block of the target pool, publish-then-switch, reclaim after the last reader.
#include <algorithm>
#include <deque>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "store/block_pool.h"
#include "store/version_manager.h"

namespace moert {
namespace {

constexpr int kHigh = 0;
constexpr int kLow = 1;

class HotSet final : public VersionManager {
 public:
  HotSet(const MoeModelSpec* model, PrecisionPolicy* policy, const TransitionOptions& options,
         VersionedStore* store)
      : model_(model), policy_(policy), options_(options), store_(store), pacer_(options.max_gbps) {
    int64_t total = 0;
    for (const MoeLayerSpec& layer : model->layers) {
      first_.push_back(total);
      total += layer.num_experts;
    }
    selections_.resize(total, 0);
    high_.resize(total, 0);
  }

  absl::Status Preload(int64_t high) override {
    capacity_ = Capacities(high);
    MOERT_RETURN_IF_ERROR(ChooseInitial());
    for (int l = 0; l < model_->num_layers(); ++l) {
      for (int e = 0; e < model_->layers[l].num_experts; ++e) {
        const ExpertKey key{l, e};
        const int version = TargetOf(key);
        if (!store_->StartVersion(key, version, LoadReason::kBackground)) {
          return absl::ResourceExhaustedError(
              fmt::format("no memory for layer {} expert {} within the budget", l, e));
        }
      }
      MOERT_RETURN_IF_ERROR(WaitForLayer(l));
      MOERT_RETURN_IF_ERROR(Loaded(l));
    }
    return absl::OkStatus();
  }

  void BeforeStep(const PolicyContext& context) override {
    store_->Pump();
    SwitchArrived();
    // Intervals are of time, and opening took some: one in which nobody was selected.
    if (!any_step_) AfterStep(context);
  }

  void AfterStepOpened(const PolicyContext& context) override { StartQueued(context.now_ns); }

  void AfterStep(const PolicyContext& context) override {
    any_step_ = true;
    if (context.now_ns - decided_ns_ < options_.interval_ns) return;
    decided_ns_ = context.now_ns;
    store_->Pump();
    SwitchArrived();  // those may move again
    Decide(context);
  }

  void OnRouting(const PolicyContext& context, const RoutingView& routing) override {
    int64_t* selections = &selections_[first_[context.layer]];
    for (size_t e = 0; e < routing.counts.size(); ++e) selections[e] += routing.counts[e];
  }

  absl::Status Resize(int64_t high, int64_t slots, int64_t low_slots) override {
    // What fails leaves the old size; experts that were demoted by then are promoted again later.
    std::vector<int32_t> before = Capacities(high);
    capacity_.swap(before);
    const int64_t old_slots = store_->pool(kHigh).limit();
    const int64_t old_low_slots = store_->pool(kLow).limit();
    absl::Cleanup keep = [&] {
      capacity_.swap(before);
      store_->pool(kHigh).SetLimit(old_slots);
      store_->pool(kLow).SetLimit(old_low_slots);
    };
    ForgetQueued();
    // Blocks above a lowered limit stay with who has them and are freed when given back, which pays
    // for the low blocks the demotions below take.
    store_->pool(kHigh).SetLimit(slots);
    store_->pool(kLow).SetLimit(low_slots);
    // What was on its way and failed keeps its old version: no reason to refuse a budget.
    (void)Drain();
    const std::vector<double> worth = WorthInHigh();
    const std::vector<int64_t> room = Room();
    for (int l = 0; l < model_->num_layers(); l = NextGroup(l)) {
      std::vector<ExpertKey> leaving = LeastFirst(l, worth);
      leaving.resize(std::max<int64_t>(0, -room[GroupOf(l)]));
      for (const ExpertKey key : leaving) {
        moving_.reserve(moving_.size() + 1);  // what moves is on the list
        if (!store_->StartVersion(key, kLow, LoadReason::kDemand) && !StartForUnusedHigh(key)) {
          return absl::ResourceExhaustedError("no spare block to demote an expert into");
        }
        SetTarget(key, kLow);
        moving_.push_back(key);
        MOERT_RETURN_IF_ERROR(Drain());
        ++stats_.demotions;
      }
    }
    store_->pool(kHigh).SetLimit(slots);
    store_->pool(kLow).SetLimit(low_slots);
    std::move(keep).Cancel();
    return absl::OkStatus();
  }

 private:
  /// Behind a budget that grew fewer experts are high than it has room for, and the others are low,
  /// in more blocks than the pool's limit. Those that leave go low too: unused high blocks, which
  /// are no smaller, pay.
  bool StartForUnusedHigh(ExpertKey key) {
    store_->pool(kHigh).SetLimit(0);
    store_->pool(kLow).SetLimit(model_->total_experts());
    return store_->StartVersion(key, kLow, LoadReason::kDemand);
  }
  int64_t Index(ExpertKey key) const { return first_[key.layer] + key.expert; }
  int TargetOf(ExpertKey key) const { return high_[Index(key)] ? kHigh : kLow; }
  void SetTarget(ExpertKey key, int version) {
    high_[Index(key)] = version == kHigh;
    store_->set_intended(key, version);
  }
  // Layers that share their high blocks are a group, named by the first of them: all, or one.
  int GroupOf(int layer) const { return options_.shared ? 0 : layer; }
  int NextGroup(int layer) const { return options_.shared ? model_->num_layers() : layer + 1; }
  /// How many more experts of each group may be high; negative: that have to leave.
  std::vector<int64_t> Room() const {
    std::vector<int64_t> room(model_->num_layers());
    for (int l = 0; l < model_->num_layers(); ++l) {
      const auto begin = high_.begin() + first_[l];
      room[GroupOf(l)] +=
          capacity_[l] - std::count(begin, begin + model_->layers[l].num_experts, 1);
    }
    return room;
  }
  absl::StatusOr<PrecisionDecision> Ask(const PolicyContext& context, PrecisionMoment moment) {
    return policy_->Decide({context, selections_, high_, capacity_, moment});
  }
  /// What the policy says, or the selections do.
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
  /// A group's high experts, those worth least first; of equals the first ones stay longest.
  std::vector<ExpertKey> LeastFirst(int group, absl::Span<const double> worth) const {
    std::vector<ExpertKey> members;
    for (int l = NextGroup(group) - 1; l >= group; --l) {
      for (int32_t e = model_->layers[l].num_experts - 1; e >= 0; --e) {
        if (high_[Index({l, e})]) members.push_back({l, e});
      }
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](ExpertKey a, ExpertKey b) { return worth[Index(a)] < worth[Index(b)]; });
    return members;
  }
  std::vector<int32_t> Capacities(int64_t high) const {
    const std::vector<int> dealt = UniformCapacity(*model_, high);
    return {dealt.begin(), dealt.end()};
  }

  /// The policy's initial high set, filled up with each layer's first experts.
  absl::Status ChooseInitial() {
    PolicyContext context;
    context.model = model_;
    MOERT_ASSIGN_OR_RETURN(const PrecisionDecision initial, Ask(context, PrecisionMoment::kOpen));
    std::vector<int64_t> room = Room();
    for (const ExpertKey key : initial.promote) {
      if (!Legal(key)) {
        return absl::InvalidArgumentError(fmt::format(
            "initially high: layer {} expert {} does not exist in a model of {} MoE layers",
            key.layer, key.expert, model_->num_layers()));
      }
      if (high_[Index(key)]) {
        return absl::InvalidArgumentError(fmt::format(
            "initially high: layer {} expert {} is named twice", key.layer, key.expert));
      }
      if (room[GroupOf(key.layer)]-- == 0) {
        return absl::InvalidArgumentError(
            fmt::format("initially high: more experts of layer {} than the {} the budget holds",
                        key.layer, capacity_[key.layer]));
      }
      SetTarget(key, kHigh);
    }
    for (int l = 0; l < model_->num_layers(); ++l) {
      for (int e = 0; e < model_->layers[l].num_experts; ++e) {
        const ExpertKey key{l, e};
        if (!high_[Index(key)]) SetTarget(key, room[GroupOf(l)]-- > 0 ? kHigh : kLow);
      }
    }
    return absl::OkStatus();
  }

  absl::Status WaitForLayer(int layer) {
    while (store_->Wait()) {
    }
    for (int e = 0; e < model_->layers[layer].num_experts; ++e) {
      MOERT_RETURN_IF_ERROR(store_->TakeFailure({layer, e}));
    }
    return absl::OkStatus();
  }

  /// Lands, switches and reclaims everything that moves; no step is open.
  absl::Status Drain() {
    while (store_->Wait()) {
    }
    absl::Status failure;
    for (const ExpertKey key : moving_) failure.Update(store_->TakeFailure(key));
    SwitchArrived();
    store_->CloseStep(store_->OpenStep());
    return failure;
  }

  /// What has arrived switches at the coming boundary; what failed keeps its old version.
  void SwitchArrived() {
    const auto settled = [&](ExpertKey key) {
      const int target = TargetOf(key);
      const VersionState state = store_->State(key, target);
      if (state == VersionState::kLoading) return false;
      if (state == VersionState::kResident) {
        store_->Switch(key, target, /*drop_old=*/true);
      } else {
        (void)store_->TakeFailure(key);
        ++stats_.deferred;
        SetTarget(key, target == kHigh ? kLow : kHigh);
      }
      return true;
    };
    moving_.erase(std::remove_if(moving_.begin(), moving_.end(), settled), moving_.end());
  }

  /// What was never started stays what it was.
  void ForgetQueued() {
    for (const ExpertKey key : promotions_) SetTarget(key, kLow);
    for (const ExpertKey key : demotions_) SetTarget(key, kHigh);
    promotions_.clear();
    demotions_.clear();
  }

  void Decide(PolicyContext context) {
    ForgetQueued();  // the new decision replaces it
    const absl::StatusOr<PrecisionDecision> decided = Ask(context, PrecisionMoment::kInterval);
    std::fill(selections_.begin(), selections_.end(), 0);
    if (!decided.ok()) {
      ++stats_.policy_fallbacks;
      return;
    }
    const PrecisionDecision& decision = *decided;
    // No group may ever exceed its capacity; what would is dropped and counted.
    std::vector<int64_t> room = Room();
    for (const ExpertKey key : decision.demote) {
      if (!Legal(key) || !high_[Index(key)] || Moving(key)) {
        ++stats_.policy_fallbacks;
        continue;
      }
      demotions_.push_back(key);
      ++room[GroupOf(key.layer)];
      SetTarget(key, kLow);
    }
    for (const ExpertKey key : decision.promote) {
      if (!Legal(key) || high_[Index(key)] || Moving(key) || room[GroupOf(key.layer)] <= 0) {
        ++stats_.policy_fallbacks;
        continue;
      }
      promotions_.push_back(key);
      --room[GroupOf(key.layer)];
      SetTarget(key, kHigh);
    }
  }

  bool Legal(ExpertKey key) const {
    return key.layer >= 0 && key.layer < model_->num_layers() && key.expert >= 0 &&
           key.expert < model_->layers[key.layer].num_experts;
  }
  bool Moving(ExpertKey key) const {
    return std::find(moving_.begin(), moving_.end(), key) != moving_.end();
  }

  void StartQueued(int64_t now_ns) {
    bool progress = true;
    while (progress && pacer_.Allows(now_ns)) {
      // A demotion gives high bytes back, so it goes first (evictions first when the budget is
      // tight).
      progress = StartOne(&demotions_, kLow, now_ns, &stats_.demotions);
      if (pacer_.Allows(now_ns)) {
        progress = StartOne(&promotions_, kHigh, now_ns, &stats_.promotions) || progress;
      }
    }
  }

  bool StartOne(std::deque<ExpertKey>* queue, int version, int64_t now_ns, int64_t* counter) {
    if (queue->empty()) return false;
    const ExpertKey key = queue->front();
    // The old version must have been reclaimed: a block of each pool is all an expert may hold.
    if (store_->State(key, version) != VersionState::kAbsent) return false;
    moving_.reserve(moving_.size() + 1);  // what moves is on the list
    if (!store_->StartVersion(key, version, LoadReason::kBackground)) {
      ++stats_.deferred;
      return false;
    }
    queue->pop_front();
    moving_.push_back(key);
    pacer_.Spend(now_ns, store_->layout(key, version).bytes);
    ++*counter;
    return true;
  }

  const MoeModelSpec* model_;
  PrecisionPolicy* policy_;
  const TransitionOptions options_;
  VersionedStore* store_;
  TransitionPacer pacer_;
  std::vector<int64_t> first_;
  std::vector<int64_t> selections_;  // since the last decision
  std::vector<uint8_t> high_;        // where each expert is, or is going
  std::vector<int32_t> capacity_;
  std::deque<ExpertKey> promotions_, demotions_;
  std::vector<ExpertKey> moving_;  // target version loading
  int64_t decided_ns_ = 0;
  bool any_step_ = false;
};

}  // namespace

std::unique_ptr<VersionManager> MakeHotSet(const MoeModelSpec* model, PrecisionPolicy* policy,
                                           const TransitionOptions& options,
                                           VersionedStore* store) {
  return std::make_unique<HotSet>(model, policy, options, store);
}

}  // namespace moert
