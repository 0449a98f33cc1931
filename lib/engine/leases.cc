#include "engine/leases.h"

#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"

namespace moert {

absl::StatusOr<LeaseId> Leases::Acquire(StepId step, int64_t epoch, const PolicyContext& context,
                                        absl::Span<const int32_t> experts,
                                        std::vector<ExpertView>* views) {
  const int num_experts = context.model->layers[context.layer].num_experts;
  for (const int32_t e : experts) {
    if (e < 0 || e >= num_experts) {
      return InvalidArgument("layer {} expert {}: must be in [0, {})", context.layer, e,
                             num_experts);
    }
  }
  Lease lease{step, Pins(store_), {}};
  MOERT_RETURN_IF_ERROR(moert::Acquire(
      store_, epoch, context, experts, [this] { return store_->Wait(); }, &lease.pins));
  for (const int32_t e : experts) {
    const ExpertHandle handle = store_->Resolve({context.layer, e}, epoch);
    lease.views.push_back({e, handle.record, handle.layout, handle.version});
  }
  *views = lease.views;
  const WriterMutexLock lock(&mu_);
  leases_.emplace(next_, std::move(lease));
  return next_++;
}

absl::Status Leases::Ended(LeaseId id) const {
  if (id < 1 || id >= next_) return InvalidArgument("there is no lease {}", id);
  return FailedPrecondition("lease {} has ended: it was released, or its step ended", id);
}

absl::Status Leases::Use(LeaseId id,
                         absl::FunctionRef<absl::Status(absl::Span<const ExpertView>)> use) const
    try {
  const ReaderMutexLock lock(&mu_);
  const auto it = leases_.find(id);
  return it == leases_.end() ? Ended(id) : use(it->second.views);
} catch (...) {
  return ExceptionStatus("using a lease");
}

absl::Status Leases::Release(LeaseId id) {
  const WriterMutexLock lock(&mu_);
  return leases_.erase(id) == 1 ? absl::OkStatus() : Ended(id);
}

void Leases::ReleaseStep(StepId step) {
  const WriterMutexLock lock(&mu_);
  std::erase_if(leases_, [step](const auto& item) { return item.second.step == step; });
}

}  // namespace moert
