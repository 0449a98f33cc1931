#include "store/resident_versions.h"

#include <algorithm>

#include "base/status_macros.h"
#include "store/block_pool.h"

namespace moert {

ResidentVersions::ResidentVersions(const MoeModelSpec* model, PrecisionPolicy* policy,
                                   const TransitionOptions& options, VersionedStore* store)
    : model_(model), policy_(policy), options_(options), store_(store), pacer_(options.max_gbps) {
  int64_t total = 0;
  for (const MoeLayerSpec& layer : model->layers) {
    first_.push_back(total);
    total += layer.num_experts;
  }
  selections_.resize(total, 0);
  rung_.resize(total, 0);
  settled_.resize(total, 0);
}

absl::Status ResidentVersions::Preload(int64_t high) {
  SetRoom(high);
  MOERT_RETURN_IF_ERROR(ChooseInitial());
  settled_ = rung_;
  for (int l = 0; l < model_->num_layers(); ++l) {
    for (int e = 0; e < model_->layers[l].num_experts; ++e) {
      const ExpertKey key{l, e};
      if (!store_->StartVersion(key, VersionOf(RungOf(key)), LoadReason::kBackground)) {
        return NoMemoryFor(l, e, store_->PoolOf(VersionOf(RungOf(key))));
      }
    }
    MOERT_RETURN_IF_ERROR(WaitForLayer(l));
    MOERT_RETURN_IF_ERROR(Loaded(l));
  }
  return absl::OkStatus();
}

absl::Status ResidentVersions::WaitForLayer(int layer) {
  while (store_->Wait()) {
  }
  for (int e = 0; e < model_->layers[layer].num_experts; ++e) {
    MOERT_RETURN_IF_ERROR(store_->TakeFailure({layer, e}));
  }
  return absl::OkStatus();
}

void ResidentVersions::BeforeStep(const PolicyContext& context) {
  store_->Pump();
  SwitchArrived();
  // Decides once before the first step: opening took time, and counts as an interval without
  // selections.
  if (!any_step_) AfterStep(context);
}

void ResidentVersions::AfterStep(const PolicyContext& context) {
  any_step_ = true;
  if (context.now_ns - decided_ns_ < options_.interval_ns) return;
  decided_ns_ = context.now_ns;
  store_->Pump();
  SwitchArrived();  // these experts may move again
  ForgetQueued();   // the new decision replaces the queues
  const absl::StatusOr<PrecisionDecision> decided = Ask(context, PrecisionMoment::kInterval);
  std::fill(selections_.begin(), selections_.end(), 0);
  if (decided.ok()) {
    Decide(*decided);
  } else {
    ++stats_.policy_fallbacks;
  }
}

void ResidentVersions::OnRouting(const PolicyContext& context, const RoutingView& routing) {
  int64_t* selections = &selections_[first_[context.layer]];
  for (size_t e = 0; e < routing.counts.size(); ++e) selections[e] += routing.counts[e];
}

void ResidentVersions::SetRung(ExpertKey key, int rung) {
  rung_[Index(key)] = static_cast<uint8_t>(rung);
  store_->set_intended(key, VersionOf(rung));
}

bool ResidentVersions::Legal(ExpertKey key) const {
  return key.layer >= 0 && key.layer < model_->num_layers() && key.expert >= 0 &&
         key.expert < model_->layers[key.layer].num_experts;
}

absl::StatusOr<PrecisionDecision> ResidentVersions::Ask(const PolicyContext& context,
                                                        PrecisionMoment moment) {
  return policy_->Decide({context, selections_, rung_, capacity_, moment, capacity_bytes_, bytes_});
}

std::vector<int32_t> ResidentVersions::Dealt(int64_t high) const {
  const std::vector<int> dealt = UniformCapacity(*model_, high);
  return {dealt.begin(), dealt.end()};
}

void ResidentVersions::Queue(ExpertKey key, int rung) {
  (rung < SettledOf(key) ? demotions_ : promotions_).push_back(key);
  SetRung(key, rung);
}

void ResidentVersions::ForgetQueued() {
  for (const auto* queue : {&promotions_, &demotions_}) {
    for (const ExpertKey key : *queue) SetRung(key, SettledOf(key));
  }
  promotions_.clear();
  demotions_.clear();
}

absl::StatusOr<bool> ResidentVersions::DemoteNow(ExpertKey key, int rung) {
  moving_.reserve(moving_.size() + 1);  // so that push_back cannot fail after the start
  if (!store_->StartVersion(key, VersionOf(rung), LoadReason::kDemand)) return false;
  SetRung(key, rung);
  moving_.push_back(key);
  MOERT_RETURN_IF_ERROR(Drain());
  ++stats_.demotions;
  return true;
}

absl::Status ResidentVersions::Drain() {
  while (store_->Wait()) {
  }
  absl::Status failure;
  for (const ExpertKey key : moving_) failure.Update(store_->TakeFailure(key));
  SwitchArrived();
  store_->CloseStep(store_->OpenStep());
  return failure;
}

void ResidentVersions::SwitchArrived() {
  // Arrived versions switch at the coming boundary; after a failure an expert keeps its old
  // version.
  const auto settled = [&](ExpertKey key) {
    const int version = VersionOf(RungOf(key));
    const VersionState state = store_->State(key, version);
    if (state == VersionState::kLoading) return false;
    if (state == VersionState::kResident) {
      store_->Switch(key, version, /*drop_old=*/true);
      settled_[Index(key)] = rung_[Index(key)];
    } else {
      (void)store_->TakeFailure(key);
      ++stats_.deferred;
      SetRung(key, SettledOf(key));
    }
    return true;
  };
  moving_.erase(std::remove_if(moving_.begin(), moving_.end(), settled), moving_.end());
}

void ResidentVersions::StartQueued(int64_t now_ns) {
  int64_t room = promotions_.empty() ? 0 : GrowthRoom();
  bool progress = true;
  while (progress && pacer_.Allows(now_ns)) {
    // A demotion gives bytes back, so it goes first (evictions first when the budget is tight).
    progress = StartOne(&demotions_, now_ns, &stats_.demotions);
    if (!pacer_.Allows(now_ns) || promotions_.empty()) continue;
    const int64_t growth = GrowthOf(promotions_.front());
    if (growth > room || !StartOne(&promotions_, now_ns, &stats_.promotions)) continue;
    room -= growth;
    progress = true;
  }
}

bool ResidentVersions::StartOne(std::deque<ExpertKey>* queue, int64_t now_ns, int64_t* counter) {
  if (queue->empty()) return false;
  const ExpertKey key = queue->front();
  const int version = VersionOf(RungOf(key));
  // The old version must have been reclaimed: an expert holds at most two versions.
  if (store_->State(key, version) != VersionState::kAbsent || store_->Switching(key)) return false;
  moving_.reserve(moving_.size() + 1);  // so that push_back cannot fail after the start
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

}  // namespace moert
