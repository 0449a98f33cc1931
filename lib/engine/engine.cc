#include "moert/engine.h"

#include <utility>

#include "base/bytes_text.h"
#include "base/status_macros.h"
#include "engine/engine_impl.h"
#include "engine/memory_plan.h"
#include "fmt/format.h"

namespace moert {

void EngineImpl::Publish() {
  const EngineStats stats = StatsSince(CollectStats(), opened_);
  std::lock_guard<std::mutex> lock(published_mu_);
  published_ = stats;
}

bool EngineImpl::graph_safe() const {
  return backend_ != nullptr && strategy_.graph_safe() && options_.trace == nullptr &&
         options_.clock == ClockKind::kWall && !options_.simulate;
}

absl::Status EngineImpl::CheckLayer(int layer) const {
  const int layers = source_->model().num_layers();
  if (layer >= 0 && layer < layers) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("layer {}: must be in [0, {})", layer, layers));
}

absl::StatusOr<LeaseId> EngineImpl::AcquireExperts(StepId step, int layer,
                                                   absl::Span<const int32_t> experts,
                                                   std::vector<ExpertView>* views) {
  MOERT_RETURN_IF_ERROR(CheckLayer(layer));
  if (options_.simulate) {
    return absl::FailedPreconditionError("simulate: there are no records to lease");
  }
  const std::lock_guard<std::mutex> lock(mu_);
  MOERT_ASSIGN_OR_RETURN(const Step* found, FindStep(step));
  absl::StatusOr<LeaseId> lease =
      leases_->Acquire(step, found->epoch, ContextOf(*found, layer), experts, views);
  Publish();
  return lease;
}

absl::Status EngineImpl::ReleaseExperts(LeaseId lease) {
  const std::lock_guard<std::mutex> lock(mu_);
  return leases_->Release(lease);
}

absl::Status EngineImpl::PrefetchHint(int layer, absl::Span<const int32_t> experts) {
  MOERT_RETURN_IF_ERROR(CheckLayer(layer));
  const int num_experts = source_->model().layers[layer].num_experts;
  for (const int32_t e : experts) {
    if (e < 0 || e >= num_experts) {
      return absl::InvalidArgumentError(
          fmt::format("layer {} expert {}: must be in [0, {})", layer, e, num_experts));
    }
  }
  {
    const std::lock_guard<std::mutex> lock(hints_mu_);
    // Hints nobody comes to apply are forgotten, oldest first.
    constexpr size_t kMost = 1 << 16;
    if (hints_.size() + experts.size() > kMost) hints_.clear();
    for (const int32_t e : experts) hints_.push_back({layer, e});
  }
  const std::unique_lock<std::mutex> lock(mu_, std::try_to_lock);
  if (lock.owns_lock()) ApplyHints();
  return absl::OkStatus();
}

void EngineImpl::ApplyHints() {
  std::vector<ExpertKey> hints;
  {
    const std::lock_guard<std::mutex> lock(hints_mu_);
    hints.swap(hints_);
  }
  if (hints.empty()) return;
  store_->Pump();
  PolicyContext context{&source_->model(), next_step_ - 1, Phase::kDecode, clock_->now_ns(), 0, {}};
  for (const ExpertKey key : hints) {
    context.layer = key.layer;
    prefetcher_->Hint(context, key);
  }
}

absl::StatusOr<std::vector<Residency>> EngineImpl::ResidencyOf(int layer) {
  MOERT_RETURN_IF_ERROR(CheckLayer(layer));
  const std::lock_guard<std::mutex> lock(mu_);
  store_->Pump();
  std::vector<Residency> states;
  for (int e = 0; e < source_->model().layers[layer].num_experts; ++e) {
    const ExpertKey key{layer, e};
    const ExpertHandle handle = store_->Latest(key);
    states.push_back(handle.record == nullptr
                         ? (store_->Arriving(key) ? Residency::kArriving : Residency::kAbsent)
                     : handle.version == 0 ? Residency::kHigh
                                           : Residency::kLow);
  }
  return states;
}

absl::Status EngineImpl::SetBudget(const Budget& budget) {
  absl::Status status;
  std::string line;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    const int64_t before = plan_.budget_bytes;
    status = SetBudgetLocked(budget);
    line = fmt::format("budget {} -> {}, room for {} experts", BytesText(before),
                       BytesText(plan_.budget_bytes), plan_.slots + plan_.low_slots);
  }
  if (status.ok()) Log(LogLevel::kInfo, line);
  return status;
}

absl::Status EngineImpl::SetBudgetLocked(const Budget& budget) {
  MemoryPlan plan = plan_;
  MOERT_RETURN_IF_ERROR(ApplyBudget(budget, strategy_, source_->model(), &plan));
  if (manager_ != nullptr && !steps_.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("the budget of strategy {} changes between steps; {} are open", strategy_.spec,
                    steps_.size()));
  }
  // Growing: the limit first, so that blocks may be taken; shrinking: after they were given back.
  if (plan.budget_bytes > plan_.budget_bytes) budget_.SetLimit(plan.budget_bytes);
  MOERT_RETURN_IF_ERROR(manager_ == nullptr
                            ? store_->SetSlots(plan.slots)
                            : manager_->Resize(HighExperts(plan), plan.slots, plan.low_slots));
  budget_.SetLimit(plan.budget_bytes);
  HoldPools();
  {
    std::lock_guard<std::mutex> published(published_mu_);
    plan_ = plan;
  }
  Publish();
  return absl::OkStatus();
}

absl::StatusOr<MemoryPlan> Engine::Plan(const ExpertSource& source, const EngineOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const Blueprint blueprint, MakeBlueprint(source, options));
  return blueprint.plan;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<const ExpertSource> source,
                                                       const EngineOptions& options) {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  MOERT_ASSIGN_OR_RETURN(Blueprint blueprint, MakeBlueprint(*source, options));
  auto engine = std::make_unique<EngineImpl>(std::move(source), options, std::move(blueprint));
  MOERT_RETURN_IF_ERROR(engine->Init());
  return engine;
}

}  // namespace moert
