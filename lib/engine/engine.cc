#include "moert/engine.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "base/bytes_text.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "engine/engine_impl.h"
#include "engine/memory_plan.h"
#include "engine/shard.h"
#include "fmt/format.h"
#include "model/check_layer.h"

namespace moert {
namespace {

GraphNeeds GraphNeedsOf(const Strategy& strategy, const EngineParts& parts) {
  if (parts.misses_served.ok()) {
    return {.capturable = true,
            .max_rows = parts.executor->device_path()->cache()->most_captured_rows()};
  }
  if (parts.runner->serves_fetches()) return {.capturable = true};
  if (!strategy.graph_safe() || !parts.runner->runs_resident()) {
    return {.obstacle = std::string(parts.misses_served.message())};
  }
  // One eager step in so many provides enough scores for the policy.
  constexpr int kEagerEvery = 8;
  return {.capturable = true,
          .eager_every = strategy.serving == Serving::kLowPlusCache ? kEagerEvery : 0};
}

}  // namespace

EngineImpl::EngineImpl(std::shared_ptr<const ExpertSource> source, const EngineOptions& options,
                       std::unique_ptr<Blueprint> blueprint, std::unique_ptr<EngineParts> parts)
    : source_(std::move(source)),
      options_(options),
      blueprint_(std::move(blueprint)),
      parts_(std::move(parts)),
      leases_(parts_->leases.get()),
      graph_needs_(GraphNeedsOf(blueprint_->strategy, *parts_)),
      opened_(CollectStats(*parts_, blueprint_->plan.fixed_bytes())),
      plan_(blueprint_->plan) {
  Publish();
}

absl::StatusOr<std::unique_ptr<EngineImpl>> EngineImpl::Create(
    std::shared_ptr<const ExpertSource> source, const EngineOptions& options,
    const PartOfModel& part) {
  MOERT_ASSIGN_OR_RETURN(Blueprint made, MakeBlueprint(*source, options, part));
  auto blueprint = std::make_unique<Blueprint>(std::move(made));
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<EngineParts> parts,
                         MakeEngineParts(source.get(), options, *blueprint));
  std::unique_ptr<EngineImpl> engine(
      new EngineImpl(std::move(source), options, std::move(blueprint), std::move(parts)));
  const MemoryPlan plan = engine->memory();
  engine->Log(LogLevel::kInfo,
              fmt::format("{} opened, strategy {}, budget {}: {}", engine->source_->name(),
                          engine->strategy(), BytesText(plan.budget_bytes), plan.ToString()));
  if (!engine->blueprint_->why.empty()) {
    engine->Log(LogLevel::kInfo, fmt::format("{} was chosen by {}: {}", engine->strategy(),
                                             options.strategy, engine->blueprint_->why));
  }
  const std::string notice = engine->blueprint_->backend->TakeNotice();
  if (!notice.empty()) engine->Log(LogLevel::kWarning, notice);
  return engine;
}

void EngineImpl::Publish() {
  const EngineStats stats =
      StatsSince(CollectStats(*parts_, blueprint_->plan.fixed_bytes()), opened_);
  const MutexLock lock(&published_mu_);
  published_ = stats;
}

absl::Status EngineImpl::CheckProcess() const {
  if (ForkCount() == forks_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the engine was made before fork(): its threads are in the parent; make one in this process");
}

absl::StatusOr<LeaseId> EngineImpl::AcquireExperts(StepId step, int layer,
                                                   absl::Span<const int32_t> experts,
                                                   std::vector<ExpertView>* views) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  MOERT_RETURN_IF_ERROR(blueprint_->backend->CheckLease());
  const TurnLock lock(&turns_, &mu_);
  MOERT_ASSIGN_OR_RETURN(const StepState* found, FindStep(step));
  MOERT_RETURN_IF_ERROR(TakeBack());
  absl::StatusOr<LeaseId> lease =
      parts_->leases->Acquire(step, found->epoch, ContextOf(*found, layer), experts, views);
  Publish();
  return lease;
} catch (...) {
  return ExceptionStatus("acquiring experts");
}

absl::Status EngineImpl::ReleaseExperts(LeaseId lease) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  const TurnLock lock(&turns_, &mu_);
  return parts_->leases->Release(lease);
} catch (...) {
  return ExceptionStatus("releasing experts");
}

absl::Status EngineImpl::PrefetchHint(int layer, absl::Span<const int32_t> experts) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  const int num_experts = source_->model().layers[layer].num_experts;
  for (const int32_t e : experts) {
    if (e < 0 || e >= num_experts) {
      return InvalidArgument("layer {} expert {}: must be in [0, {})", layer, e, num_experts);
    }
  }
  {
    const MutexLock lock(&hints_mu_);
    // Drops old hints if no layer call comes to apply them.
    constexpr size_t kMost = 1 << 16;
    if (hints_.size() + experts.size() > kMost) hints_.clear();
    for (const int32_t e : experts) hints_.push_back({layer, e});
  }
  if (!mu_.TryLock()) return absl::OkStatus();
  const MutexLock lock(&mu_, std::adopt_lock);
  ApplyHints();
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("prefetch hint");
}

void EngineImpl::ApplyHints() {
  if (parts_->runner->lent()) return;  // hints wait until the blocks are taken back
  std::vector<ExpertKey> hints;
  {
    const MutexLock lock(&hints_mu_);
    hints.swap(hints_);
  }
  if (hints.empty()) return;
  parts_->store->Pump();
  PolicyContext context{&source_->model(), next_step_ - 1, Phase::kDecode, now_ns(), 0, {}};
  for (const ExpertKey key : hints) {
    context.layer = key.layer;
    parts_->prefetcher->Hint(context, key);
  }
}

absl::StatusOr<std::vector<Residency>> EngineImpl::ResidencyOf(int layer) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  const TurnLock lock(&turns_, &mu_);
  MOERT_RETURN_IF_ERROR(TakeBack());
  parts_->store->Pump();
  return parts_->store->States(layer);
} catch (...) {
  return ExceptionStatus("residency");
}

absl::Status EngineImpl::SetBudget(const Budget& budget) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  absl::Status status;
  std::string line;
  {
    const AheadLock lock(&turns_, &mu_);
    const MemoryPlan before = memory();
    status = SetBudgetLocked(budget);
    const MemoryPlan now = memory();
    line = fmt::format("budget {} -> {}, room for {} experts", BytesText(before.budget_bytes),
                       BytesText(now.budget_bytes), now.slots + now.low_slots);
  }
  if (status.ok()) Log(LogLevel::kInfo, line);
  return status;
} catch (...) {
  return ExceptionStatus("changing the budget");
}

absl::Status EngineImpl::SetBudgetLocked(const Budget& budget) {
  MemoryPlan plan = memory();
  MOERT_RETURN_IF_ERROR(ApplyBudget(budget, blueprint_->strategy, source_->model(), &plan));
  MOERT_RETURN_IF_ERROR(TakeBack());
  if (parts_->versions == nullptr || steps_.empty()) {
    MOERT_RETURN_IF_ERROR(TakePlan(plan));
    coming_.reset();
    return absl::OkStatus();
  }
  // Open steps keep the versions that they see.
  coming_ = plan;
  AdvancePlan();
  return absl::OkStatus();
}

absl::Status EngineImpl::TakePlan(const MemoryPlan& plan) {
  // To grow, the limit is raised first, so that blocks may be taken. To shrink, it is lowered after
  // blocks were given back. If an earlier plan was given up half way, the limit may be above that
  // of the present plan.
  const int64_t old_bytes = parts_->budget->limit();
  absl::Cleanup keep = [this, old_bytes]()
                           ABSL_NO_THREAD_SAFETY_ANALYSIS { parts_->budget->SetLimit(old_bytes); };
  parts_->budget->SetLimit(std::max(old_bytes, plan.budget_bytes));
  MOERT_RETURN_IF_ERROR(
      parts_->versions == nullptr
          ? parts_->store->SetSlots(plan.slots, plan.budget_bytes - plan.fixed_bytes())
          : parts_->versions->Resize(HighExperts(plan), plan.slots, plan.low_slots));
  std::move(keep).Cancel();
  ConfirmPlan(plan);
  return absl::OkStatus();
}

void EngineImpl::ConfirmPlan(const MemoryPlan& plan) {
  parts_->budget->SetLimit(plan.budget_bytes);
  {
    const MutexLock published(&published_mu_);
    plan_ = plan;
  }
  HoldPools(*blueprint_, parts_->store.get());
  Publish();
}

void EngineImpl::AdvancePlan() {
  if (!coming_.has_value()) return;
  const MemoryPlan plan = *coming_;
  if (steps_.empty()) {
    // If it fails, for lack of memory for instance, the next boundary tries again.
    if (TakePlan(plan).ok()) coming_.reset();
    return;
  }
  BudgetTracker& budget = *parts_->budget;
  budget.SetLimit(std::max(budget.limit(), plan.budget_bytes));
  const bool fits = parts_->versions->Aim(HighExperts(plan), plan.slots, plan.low_slots);
  if (!fits || budget.used() > plan.budget_bytes) return;
  ConfirmPlan(plan);
  coming_.reset();
}

absl::StatusOr<MemoryPlan> Engine::Plan(const ExpertSource& source,
                                        const EngineOptions& options) try {
  // Borrows the source for the call.
  const std::shared_ptr<const ExpertSource> whole(&source, [](const ExpertSource*) {});
  MOERT_ASSIGN_OR_RETURN(const auto part, SourceOfShard(whole, options));
  MOERT_ASSIGN_OR_RETURN(
      const Blueprint blueprint,
      MakeBlueprint(*part, options, PartOf(source.model(), part->model(), options.shard)));
  return blueprint.plan;
} catch (...) {
  return ExceptionStatus("planning memory");
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<const ExpertSource> source,
                                                       const EngineOptions& options) try {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  if (options.shard.whole()) return EngineImpl::Create(std::move(source), options);
  MOERT_RETURN_IF_ERROR(source->model().Validate());
  MOERT_ASSIGN_OR_RETURN(const ShardPlan plan, ResolveShard(options.shard, source->model()));
  MOERT_ASSIGN_OR_RETURN(auto part, MakeShardSource(source, plan));
  if (plan.all_experts) return EngineImpl::Create(std::move(part), options);
  return MakeShardEngine(std::move(source), std::move(part), plan, options);
} catch (...) {
  return ExceptionStatus("creating an engine");
}

}  // namespace moert
