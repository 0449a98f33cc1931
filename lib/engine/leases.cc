#include "engine/leases.h"

#include <utility>

#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {

absl::Status Leases::Bring(int64_t epoch, const PolicyContext& context,
                           absl::Span<const int32_t> experts, std::vector<ExpertKey>* pinned) {
  const int num_experts = context.model->layers[context.layer].num_experts;
  for (const int32_t e : experts) {
    if (e < 0 || e >= num_experts) {
      return absl::InvalidArgumentError(
          fmt::format("layer {} expert {}: must be in [0, {})", context.layer, e, num_experts));
    }
  }
  store_->BeginLayerCall();
  store_->Pump();
  for (const int32_t e : experts) {
    const ExpertKey key{context.layer, e};
    ++stats_->lookups;
    bool missed = false;
    while (store_->Resolve(key, epoch).record == nullptr) {
      if (!missed) stats_->late += store_->Arriving(key);
      missed = true;
      const bool moving = store_->StartLoad(key, 0, LoadReason::kDemand, context);
      if (!store_->Wait() && !moving) {
        return absl::ResourceExhaustedError(fmt::format(
            "layer {} expert {}: every block of the budget is pinned or leased", context.layer, e));
      }
      if (store_->Resolve(key, epoch).record == nullptr && !store_->Arriving(key)) {
        MOERT_RETURN_IF_ERROR(store_->TakeFailure(key));
      }
    }
    const bool prefetched = store_->Touch(key, 1);
    stats_->prefetch_useful += prefetched;
    if (!missed && store_->Resolve(key, epoch).version > store_->intended(key)) {
      ++stats_->low_answers;
    } else if (!missed) {
      ++(prefetched ? stats_->hits_prefetched : stats_->hits_resident);
    }
    store_->Pin(key);
    pinned->push_back(key);
  }
  return absl::OkStatus();
}

absl::StatusOr<LeaseId> Leases::Acquire(StepId step, int64_t epoch, const PolicyContext& context,
                                        absl::Span<const int32_t> experts,
                                        std::vector<ExpertView>* views) {
  Lease lease{step, {}};
  if (absl::Status status = Bring(epoch, context, experts, &lease.pinned); !status.ok()) {
    Unpin(lease.pinned);
    return status;
  }
  views->clear();
  for (const ExpertKey key : lease.pinned) {
    const ExpertHandle handle = store_->Resolve(key, epoch);
    views->push_back({key.expert, handle.record, handle.layout, handle.version});
  }
  leases_[next_] = std::move(lease);
  return next_++;
}

absl::Status Leases::Release(LeaseId id) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) {
    return absl::InvalidArgumentError(fmt::format("lease {} is not held", id));
  }
  Unpin(it->second.pinned);
  leases_.erase(it);
  return absl::OkStatus();
}

void Leases::ReleaseStep(StepId step) {
  for (auto it = leases_.begin(); it != leases_.end();) {
    if (it->second.step == step) {
      Unpin(it->second.pinned);
      it = leases_.erase(it);
    } else {
      ++it;
    }
  }
}

void Leases::Unpin(const std::vector<ExpertKey>& keys) {
  for (const ExpertKey key : keys) store_->Unpin(key);
}

}  // namespace moert
