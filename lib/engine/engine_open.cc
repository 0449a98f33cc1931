// Opening: from a blueprint to pools, transfers, stages and preloaded experts.
#include <algorithm>
#include <utility>

#include "base/bytes_text.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "engine/engine_impl.h"
#include "engine/memory_plan.h"
#include "fmt/format.h"
#include "transfer/transfer_queue.h"

namespace moert {

absl::Status EngineImpl::ReadConstants() {
  const MoeModelSpec& model = source_->model();
  for (int l = 0; l < model.num_layers(); ++l) {
    if (options_.simulate) {
      LayerConstants sizes;
      const MoeLayerSpec& layer = model.layers[l];
      if (layer.shared_intermediate > 0) {
        MOERT_ASSIGN_OR_RETURN(sizes.shared_layout,
                               MakeRecordLayout(layer.hidden, layer.shared_intermediate,
                                                ExpertFormat::Uniform(Scheme{})));
      }
      constants_.push_back(std::move(sizes));
      continue;
    }
    MOERT_ASSIGN_OR_RETURN(LayerConstants constants, source_->ReadConstants(l));
    shared_records_.emplace_back(static_cast<int64_t>(constants.shared_expert.size()));
    std::copy(constants.shared_expert.begin(), constants.shared_expert.end(),
              shared_records_.back().data());
    constants.shared_expert = {};
    constants_.push_back(std::move(constants));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlockPool>> EngineImpl::MakePool(const BlockSizes& sizes,
                                                                int64_t limit) {
  if (backend_ != nullptr) return backend_->MakePool(sizes, limit, &budget_);
  if (options_.allocator != nullptr && !options_.simulate) {
    return MakeHostBlockPool(options_.allocator.get(), sizes, limit, &budget_);
  }
  return (options_.simulate ? MakeCountingBlockPool : MakeRamBlockPool)(sizes, limit, &budget_);
}

absl::Status EngineImpl::Init() {
  profile_ = options_.profile;
  if (options_.link_gbps > 0) {
    // A paced link serves one transfer after another.
    profile_.link_bytes_per_s = options_.link_gbps * 1e9;
    profile_.link_streams = 1;
    profile_.stream_bytes_per_s = 0;
  }
  if (!budget_.TryReserve(plan_.fixed_bytes())) {
    return absl::InternalError("fixed parts exceed a budget that was checked to hold them");
  }
  const MoeModelSpec& model = source_->model();
  MOERT_RETURN_IF_ERROR(ReadConstants());

  VirtualClock* virtual_clock = nullptr;
  std::unique_ptr<TransferQueue> transfers;
  if (options_.clock == ClockKind::kVirtual) {
    auto clock = std::make_unique<VirtualClock>();
    virtual_clock = clock.get();
    clock_ = std::move(clock);
    // Blocks that are only counted have no bytes to read into.
    transfers =
        MakeVirtualLink(options_.simulate ? nullptr : source_.get(), virtual_clock, &profile_);
  } else {
    clock_ = std::make_unique<WallClock>();
    std::shared_ptr<LinkPacer> pacer;
    if (options_.link_gbps > 0) {
      pacer = std::make_shared<LinkPacer>(clock_.get(), options_.link_gbps * 1e9);
    }
    transfers = MakeReaderQueue(source_.get(), clock_.get(), options_.io_threads, std::move(pacer));
  }
  if (backend_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(transfers, backend_->MakeTransfers(source_.get(), clock_.get(),
                                                              virtual_clock, &profile_, options_));
  }
  std::vector<ServedVersion> served;
  std::vector<std::unique_ptr<BlockPool>> pools(1);
  const std::vector<int64_t> own = OwnBlocks(*source_, strategy_, versions_);
  const bool cache = strategy_.serving == Serving::kCache;
  const auto sizes = [&](int64_t block_bytes, bool each_its_own) {
    return each_its_own ? BlockSizes(own) : BlockSizes(block_bytes, MaxBlocks());
  };
  MOERT_ASSIGN_OR_RETURN(pools[0],
                         MakePool(sizes(plan_.block_bytes, cache && !own.empty()), plan_.slots));
  if (cache) {
    for (const int version : versions_) served.push_back({version, 0});
  } else {
    served = {{versions_[0], 0}, {versions_[1], 1}};
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<BlockPool> low,
                           MakePool(sizes(plan_.low_block_bytes, !own.empty()), plan_.low_slots));
    pools.push_back(std::move(low));
  }
  ResidencyPolicy* residency =
      strategy_.residency ? strategy_.residency.get() : default_residency_.get();
  store_ = std::make_unique<ExpertStore>(source_.get(), std::move(served), std::move(pools),
                                         std::move(transfers), residency);
  store_->SetLinkEstimate(&link_);
  if (strategy_.serving == Serving::kHotSet) {
    manager_ = MakeHotSet(&model, strategy_.precision.get(), strategy_.transitions, store_.get());
  } else if (strategy_.serving == Serving::kLowPlusCache) {
    manager_ = MakeHighCache(&model, strategy_.transitions, &profile_, store_.get());
  }

  std::vector<absl::Span<const float>> gates, biases;
  for (const LayerConstants& c : constants_) {
    gates.push_back(c.gate);
    biases.push_back(c.selection_bias);
  }
  router_ = std::make_unique<Router>(&model, std::move(gates), std::move(biases), pool_.get());
  prefetcher_ =
      std::make_unique<Prefetcher>(&model, strategy_.prefetch.get(), strategy_.prefetch_control,
                                   &profile_, &link_, store_.get(), manager_.get());
  if (strategy_.serving == Serving::kCache) prefetcher_->SetPrecision(strategy_.precision.get());
  if (strategy_.prefetch != nullptr) {
    // The capacities of the store's making knew of no prefetch.
    store_->SetPrefetchOutlook(prefetcher_->outlook());
    store_->SetCapacity(plan_.slots);
  }
  const CpuOffload beside = MakeCpuOffload();
  const bool fills = beside.can_compute != nullptr && strategy_.placement != nullptr &&
                     strategy_.placement->traits().backfills;
  store_->SetCpuOffload(fills);
  prefetcher_->SetCpuOffload(fills);
  scheduler_ = std::make_unique<Scheduler>(&model, strategy_.placement.get(), &profile_,
                                           store_.get(), beside);
  LayerParts parts;
  parts.model = &model;
  parts.profile = &profile_;
  for (const int version : versions_) {
    parts.version_names.push_back(std::string(source_->version_name(version)));
  }
  parts.constants = &constants_;
  for (int l = 0; l < model.num_layers(); ++l) {
    static const std::byte nothing{};  // a shared expert that is counted and never read
    const bool shared = model.layers[l].shared_intermediate > 0;
    parts.shared_records.push_back(!shared             ? nullptr
                                   : options_.simulate ? &nothing
                                                       : shared_records_[l].data());
  }
  parts.strategy = &strategy_;
  parts.residency = residency;
  parts.router = router_.get();
  parts.store = store_.get();
  parts.prefetcher = prefetcher_.get();
  parts.scheduler = scheduler_.get();
  parts.versions = manager_.get();
  parts.gemm = gemm_.get();
  parts.pool = pool_.get();
  parts.clock = clock_.get();
  parts.virtual_clock = virtual_clock;
  parts.trace = options_.trace.get();
  parts.simulate = options_.simulate;
  parts.best_version = versions_[0];
  if (backend_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(
        device_, backend_->MakeExecutor(
                     {source_.get(), versions_, &constants_, parts.shared_records,
                      options_.max_tokens_per_forward,
                      strategy_.placement != nullptr ? gemm_.get() : nullptr,
                      pool_->num_threads() < UsableCpus() ? kSpinWithDevice : kSpinAlone}));
    parts.device = device_.get();
    if (graph_safe()) store_->TrackChanges();
  }
  runner_ = std::make_unique<LayerRunner>(parts, options_.max_tokens_per_forward);
  int64_t hidden = 0;
  for (const MoeLayerSpec& layer : model.layers) hidden = std::max(hidden, layer.hidden);
  if (!options_.simulate && device_ == nullptr) {
    x_ = AlignedArray<float>(options_.max_tokens_per_forward * hidden);
    y_ = AlignedArray<float>(options_.max_tokens_per_forward * hidden);
  }
  if (manager_ != nullptr) {
    MOERT_RETURN_IF_ERROR(manager_->Preload(HighExperts(plan_)));
  } else if (strategy_.preload) {
    MOERT_RETURN_IF_ERROR(Preload());
  }
  HoldPools();
  opened_ = CollectStats();  // what opening took is not what running does
  store_->SetTrace(options_.trace.get());
  leases_ = std::make_unique<Leases>(store_.get());
  Publish();
  Log(LogLevel::kInfo,
      fmt::format("{} opened, strategy {}, budget {}: {}", source_->name(), strategy_.spec,
                  BytesText(plan_.budget_bytes), plan_.ToString()));
  return absl::OkStatus();
}

CpuOffload EngineImpl::MakeCpuOffload() {
  CpuOffload cpu;
  cpu.version = std::string(source_->version_name(versions_[0]));
  if (options_.simulate) {
    if (profile_.cpu_executor) {
      cpu.can_compute = [](ExpertKey, int64_t tokens) { return tokens <= CpuOffload::kMaxTokens; };
    }
  } else if (backend_ != nullptr) {
    cpu.can_compute = [this](ExpertKey key, int64_t tokens) {
      return device_->CpuCanCompute(key, versions_[0], tokens);
    };
    if (options_.clock == ClockKind::kWall) cpu.link = &link_;
  }
  // The CPU backend's CPU is the executor of the fast tier: there is none beside it.
  return cpu;
}

void EngineImpl::HoldPools() {
  if (manager_ == nullptr && strategy_.placement == nullptr) return;
  // What does not fit now is tried again when a block is taken.
  (void)store_->pool(0).HoldAll();
  if (manager_ != nullptr) (void)store_->pool(1).HoldAll();
}

absl::Status EngineImpl::Preload() {
  PolicyContext context;
  context.model = &source_->model();
  for (int l = 0; l < context.model->num_layers(); ++l) {
    context.layer = l;
    const int experts = context.model->layers[l].num_experts;
    for (int e = 0; e < experts; ++e) {
      if (!store_->StartLoad({l, e}, 0, LoadReason::kBackground, context)) {
        return absl::ResourceExhaustedError(
            fmt::format("no memory for layer {} expert {} within the budget", l, e));
      }
    }
    while (store_->Wait()) {
    }
    for (int e = 0; e < experts; ++e) MOERT_RETURN_IF_ERROR(store_->TakeFailure({l, e}));
  }
  return absl::OkStatus();
}

}  // namespace moert
