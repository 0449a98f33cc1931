#include "engine/engine_parts.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "engine/memory_plan.h"
#include "plan/placement_rule.h"
#include "store/block_pool.h"

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

namespace {

/// Makes the parts of one engine.
class Builder {
 public:
  Builder(const ExpertSource* source, const EngineOptions& options, const Blueprint& blueprint)
      : source_(source), options_(options), b_(blueprint), model_(source->model()) {}

  absl::StatusOr<std::unique_ptr<EngineParts>> Build() {
    auto made = std::make_unique<EngineParts>();
    EngineParts& p = *made;
    MOERT_ASSIGN_OR_RETURN(p.constants, b_.backend->ReadConstants(*source_));
    p.budget = std::make_unique<BudgetTracker>(b_.plan.budget_bytes);
    if (!p.budget->TryReserve(b_.plan.fixed_bytes())) {
      return absl::InternalError("fixed parts exceed a budget that was checked to hold them");
    }
    p.link = std::make_unique<LinkEstimate>(&b_.profile);
    MOERT_ASSIGN_OR_RETURN(p.store, MakeStore(p));
    p.versions = MakeVersions(p);
    MOERT_ASSIGN_OR_RETURN(p.router, Router::Create(&model_, p.constants.routers(), b_.pool.get()));
    MOERT_ASSIGN_OR_RETURN(p.executor, MakeExecutor(p));
    p.prefetcher = MakePrefetcher(p);
    p.scheduler = MakeScheduler(p);
    p.charges = std::make_unique<Charges>(b_.clock.get(), &b_.profile, &model_, &p.constants,
                                          p.store.get(), VersionNames());
    p.runner = std::make_unique<LayerRunner>(MakeLayerParts(p));
    p.leases = std::make_unique<Leases>(p.store.get());
    MOERT_RETURN_IF_ERROR(Load(p));
    // After Load: records that stand by have their final addresses.
    p.misses_served = p.runner->ServeMisses();
    p.runner->ServeFetches();
    return made;
  }

 private:
  bool cache() const { return b_.strategy.serving == Serving::kCache; }

  absl::StatusOr<std::unique_ptr<VersionedStore>> MakeStore(const EngineParts& p) const {
    const MemoryPlan& plan = b_.plan;
    const std::vector<int64_t> own = OwnBlocks(*source_, b_.strategy, b_.versions);
    // A pool reserves address space for every expert and for the spare blocks.
    const auto make_pool = [&](const BlockSizes& sizes, bool each_its_own, int64_t limit) {
      const BlockSizes blocks = each_its_own ? BlockSizes(own) : sizes;
      return b_.backend->MakePool(blocks, limit, p.budget.get());
    };
    const auto alike = [&](int64_t block_bytes) {
      return BlockSizes(block_bytes, plan.total_experts + plan.spare);
    };
    std::vector<ServedVersion> served;
    const bool one = cache() || b_.shared_pool();
    std::vector<std::unique_ptr<BlockPool>> pools(one ? 1 : 2);
    MOERT_ASSIGN_OR_RETURN(pools[0],
                           make_pool(one ? BlocksOf(*source_, b_).sizes : alike(plan.block_bytes),
                                     cache() && !own.empty(), plan.slots));
    pools[0]->SetByteLimit(cache() ? plan.budget_bytes - plan.fixed_bytes() : plan.pool_bytes());
    if (cache()) {
      for (const int version : b_.versions) served.push_back({version, 0});
    } else if (one) {
      for (const int version : b_.versions) {
        served.push_back({version, 0, std::ssize(served) * plan.total_experts});
      }
    } else {
      served = {{b_.versions[0], 0}, {b_.versions[1], 1}};
      // A lower budget may make more experts low: address space is reserved for all of them.
      const int64_t most = own.empty() ? plan.total_experts + plan.spare : std::ssize(own);
      MOERT_ASSIGN_OR_RETURN(pools[1], make_pool(alike(plan.low_block_bytes), !own.empty(), most));
      pools[1]->SetLimit(plan.low_slots);
    }
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<TransferQueue> transfers,
                           b_.backend->MakeTransfers(source_, b_.clock.get(), &b_.profile));
    return std::make_unique<VersionedStore>(source_, std::move(served), std::move(pools),
                                            std::move(transfers), b_.residency.get());
  }

  std::unique_ptr<VersionManager> MakeVersions(const EngineParts& p) const {
    switch (b_.strategy.serving) {
      case Serving::kCache:
      case Serving::kCacheOverLow:
        return nullptr;
      case Serving::kHotSet:
        return (b_.shared_pool() ? MakeLadder : MakeHotSet)(&model_, b_.strategy.precision.get(),
                                                            b_.strategy.transitions, p.store.get());
      case Serving::kLowPlusCache:
        return MakeHighCache(&model_, b_.strategy.transitions, &b_.profile, p.store.get());
    }
    return nullptr;
  }

  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const EngineParts& p) const {
    ExecutorParts parts;
    parts.source = source_;
    parts.versions = b_.versions;
    parts.max_tokens = options_.max_tokens_per_forward;
    parts.partial_output = b_.partial_output();
    parts.cpu_offload = b_.cpu_offload();
    parts.numbering = &b_.numbering;
    parts.served = b_.served();
    parts.constants = &p.constants;
    parts.profile = &b_.profile;
    parts.router = p.router.get();
    parts.gemm = b_.gemm.get();
    parts.pool = b_.pool.get();
    return b_.backend->MakeExecutor(parts);
  }

  /// Whether experts that the CPU computed are loaded behind the call.
  bool BackfillsWith(const EngineParts& p) const {
    return p.executor->cpu_offload() != nullptr && b_.cpu_offload() &&
           Backfills(b_.strategy.placement.get());
  }

  std::unique_ptr<LayerPrefetcher> MakePrefetcher(const EngineParts& p) const {
    PrefetcherParts parts;
    parts.model = &model_;
    parts.policy = b_.strategy.prefetch.get();
    if (cache()) parts.precision = b_.strategy.precision.get();
    parts.profile = &b_.profile;
    parts.link = p.link.get();
    parts.store = p.store.get();
    parts.versions = p.versions.get();
    parts.controlled = b_.strategy.prefetch_control;
    parts.cpu_offload = BackfillsWith(p);
    auto prefetcher = std::make_unique<LayerPrefetcher>(parts);
    PrefetchDriver driver{p.link.get(), {}, parts.cpu_offload};
    if (b_.strategy.prefetch != nullptr) driver.outlook = prefetcher->outlook();
    p.store->Attach(driver);
    return prefetcher;
  }

  std::unique_ptr<LayerPlanner> MakeScheduler(const EngineParts& p) const {
    CpuMisses cpu;
    cpu.version = std::string(source_->version_name(b_.versions[0]));
    if (CpuOffload* const offload = p.executor->cpu_offload(); offload != nullptr) {
      cpu.can_compute = [offload](ExpertKey key, int64_t tokens) {
        return offload->CpuCanCompute(key, tokens);
      };
      if (!b_.clock->is_virtual()) cpu.link = p.link.get();
    }
    return std::make_unique<LayerPlanner>(b_.strategy.placement.get(), &b_.profile, p.store.get(),
                                          std::move(cpu));
  }

  std::vector<std::string> VersionNames() const {
    std::vector<std::string> names;
    for (const int version : b_.versions) names.emplace_back(source_->version_name(version));
    return names;
  }

  LayerParts MakeLayerParts(const EngineParts& p) const {
    LayerParts parts;
    parts.model = &model_;
    parts.strategy = &b_.strategy;
    parts.residency = b_.residency.get();
    parts.clock = b_.clock.get();
    parts.charges = p.charges.get();
    parts.router = p.router.get();
    parts.prefetcher = p.prefetcher.get();
    parts.scheduler = p.scheduler.get();
    parts.store = p.store.get();
    parts.versions = p.versions.get();
    parts.executor = p.executor.get();
    parts.trace = options_.trace.get();
    return parts;
  }

  /// Fills the pools before the first step.
  absl::Status Load(const EngineParts& p) const {
    if (b_.strategy.graph_safe() && p.runner->runs_resident()) p.store->TrackChanges();
    if (p.versions != nullptr) {
      p.versions->WatchPreload([this](int layer) { return Loaded(layer); });
      const absl::Cleanup forget = [&] { p.versions->WatchPreload(nullptr); };
      MOERT_RETURN_IF_ERROR(p.versions->Preload(HighExperts(b_.plan)));
    } else if (b_.strategy.serving == Serving::kCacheOverLow) {
      MOERT_RETURN_IF_ERROR(p.store->LoadStandby());
    } else if (b_.strategy.preload) {
      MOERT_RETURN_IF_ERROR(PreloadAll(p.store.get()));
    }
    HoldPools(b_, p.store.get());
    p.store->StartTrace(options_.trace.get());
    return absl::OkStatus();
  }

  /// Tells the host that all layers up to this one are loaded; the host may cancel.
  absl::Status Loaded(int layer) const {
    if (options_.open_progress == nullptr) return absl::OkStatus();
    OpenProgress progress{0, model_.total_experts()};
    for (int l = 0; l <= layer; ++l) progress.loaded_experts += model_.layers[l].num_experts;
    if (options_.open_progress(progress)) return absl::OkStatus();
    return Cancelled("open_progress gave up after {} of {} experts", progress.loaded_experts,
                     progress.total_experts);
  }

  absl::Status PreloadAll(VersionedStore* store) const {
    PolicyContext context;
    context.model = &model_;
    for (int l = 0; l < model_.num_layers(); ++l) {
      context.layer = l;
      const int experts = model_.layers[l].num_experts;
      for (int e = 0; e < experts; ++e) {
        if (!store->StartLoad({l, e}, 0, LoadReason::kBackground, context)) {
          return NoMemoryFor(l, e, store->pool(0));
        }
      }
      while (store->Wait()) {
      }
      for (int e = 0; e < experts; ++e) MOERT_RETURN_IF_ERROR(store->TakeFailure({l, e}));
      MOERT_RETURN_IF_ERROR(Loaded(l));
    }
    return absl::OkStatus();
  }

  const ExpertSource* const source_;
  const EngineOptions& options_;
  const Blueprint& b_;
  const MoeModelSpec& model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EngineParts>> MakeEngineParts(const ExpertSource* source,
                                                             const EngineOptions& options,
                                                             const Blueprint& blueprint) {
  return Builder(source, options, blueprint).Build();
}

void HoldPools(const Blueprint& blueprint, VersionedStore* store) {
  const bool one_pool = blueprint.strategy.serving == Serving::kCache || blueprint.shared_pool();
  if (one_pool && !blueprint.cpu_offload()) return;
  // Memory that cannot be held now is tried again when a block is taken.
  (void)store->pool(0).HoldAll();
  if (!one_pool) (void)store->pool(1).HoldAll();
}

}  // namespace moert
