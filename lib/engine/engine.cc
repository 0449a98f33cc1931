#include "moert/engine.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "backend/backend.h"
#include "base/bytes_text.h"
#include "base/fmt_absl.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "engine/layer.h"
#include "engine/leases.h"
#include "engine/memory_plan.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "store/block_pool.h"
#include "store/budget_tracker.h"
#include "store/link_estimate.h"
#include "store/transfer_queue.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

int64_t RoundUpTo(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The versions of the source a strategy serves, most bits first.
absl::StatusOr<std::vector<int>> ServedVersions(const ExpertSource& source,
                                                const Strategy& strategy) {
  if (strategy.versions.empty()) return std::vector<int>{0};
  std::vector<std::string> known;
  for (int v = 0; v < source.num_versions(); ++v) {
    known.push_back(std::string(source.version_name(v)));
  }
  std::vector<int> served;
  for (const std::string& name : strategy.versions) {
    const auto it = std::find(known.begin(), known.end(), name);
    if (it == known.end()) {
      return absl::InvalidArgumentError(
          fmt::format("strategy {}: {} has no version '{}'; it has: {}", strategy.spec,
                      source.name(), name, fmt::join(known, ", ")));
    }
    served.push_back(static_cast<int>(it - known.begin()));
  }
  return served;
}

/// Gates, biases and shared experts of a model.
absl::StatusOr<int64_t> ConstantBytes(const MoeModelSpec& model) {
  int64_t bytes = 0;
  for (const MoeLayerSpec& l : model.layers) {
    bytes += 4 * l.num_experts * (l.hidden + (l.routing.selection_bias ? 1 : 0));
    if (l.shared_gate) bytes += 4 * l.hidden;
    if (l.shared_intermediate == 0) continue;
    MOERT_ASSIGN_OR_RETURN(
        const RecordLayout shared,
        MakeRecordLayout(l.hidden, l.shared_intermediate, ExpertFormat::Uniform(Scheme{})));
    bytes += shared.bytes;
  }
  return bytes;
}

bool WantsForward(const Strategy& strategy) {
  return strategy.prefetch != nullptr && strategy.prefetch->wants_resident_forward();
}

/// Objects whose sizes a plan needs; a created engine goes on with them.
struct Blueprint {
  Strategy strategy;
  std::vector<int> versions;  // of the source
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<MixedGroupGemm> gemm;
  std::unique_ptr<Backend> backend;  // null: the CPU
  MemoryPlan plan;
};

absl::StatusOr<Blueprint> MakeBlueprint(const ExpertSource& source, const EngineOptions& options) {
  MOERT_RETURN_IF_ERROR(options.Validate());
  const MoeModelSpec& model = source.model();
  MOERT_RETURN_IF_ERROR(model.Validate());
  Blueprint b;
  MOERT_ASSIGN_OR_RETURN(b.strategy, MakeStrategy(options.strategy));
  if (options.customize_strategy != nullptr) {
    MOERT_RETURN_IF_ERROR(options.customize_strategy(&b.strategy));
  }
  if (b.strategy.routing) MOERT_RETURN_IF_ERROR(b.strategy.routing->Check(model));
  MOERT_ASSIGN_OR_RETURN(b.versions, ServedVersions(source, b.strategy));
  b.pool = options.thread_pool;
  if (b.pool == nullptr) {
    ThreadPoolOptions threads;
    threads.threads = options.threads;
    threads.cpus = options.cpus;
    MOERT_ASSIGN_OR_RETURN(b.pool, CreateThreadPool(threads));
  }
  MOERT_ASSIGN_OR_RETURN(b.gemm,
                         MixedGroupGemm::Create(b.pool.get(), options.kernels, options.activation));

  MOERT_ASSIGN_OR_RETURN(b.backend, MakeBackend(options));
  if (b.backend != nullptr) MOERT_RETURN_IF_ERROR(b.backend->Check(source, b.versions));

  MemoryPlan& plan = b.plan;
  const int64_t tokens = options.max_tokens_per_forward;
  int64_t gemm_bytes = 0;
  int64_t hidden = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    hidden = std::max(hidden, layer.hidden);
    // One call serves routed experts of every version, and shared ones, which stay bf16.
    std::vector<ExpertFormat> formats = {ExpertFormat::Uniform(Scheme{})};
    for (int e = 0; e < layer.num_experts; ++e) {
      for (const int version : b.versions) {
        const ExpertFormat format = source.layout(l, e, version).format;
        if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
          formats.push_back(format);
        }
      }
    }
    gemm_bytes = std::max(
        gemm_bytes,
        b.gemm->WorkspaceBytes(tokens, tokens * (layer.routing.top_k + 1), layer.hidden,
                               std::max(layer.intermediate, layer.shared_intermediate), formats));
    for (int e = 0; e < layer.num_experts; ++e) {
      plan.block_bytes = std::max(plan.block_bytes, source.layout(l, e, b.versions[0]).bytes);
      if (b.strategy.serving == Serving::kCache) {
        // All versions share the blocks.
        for (const int version : b.versions) {
          plan.block_bytes = std::max(plan.block_bytes, source.layout(l, e, version).bytes);
        }
        continue;
      }
      plan.low_block_bytes =
          std::max(plan.low_block_bytes, source.layout(l, e, b.versions[1]).bytes);
    }
    plan.total_experts += layer.num_experts;
  }
  plan.block_bytes = RoundUpTo(plan.block_bytes, kRecordAlignment);
  plan.low_block_bytes = RoundUpTo(plan.low_block_bytes, kRecordAlignment);
  if (b.strategy.serving == Serving::kHotSet) plan.spare = b.strategy.transitions.spare;
  MOERT_ASSIGN_OR_RETURN(plan.constant_bytes, ConstantBytes(model));
  plan.table_bytes = plan.total_experts * ExpertStore::kBytesPerExpert;
  plan.workspace_bytes = gemm_bytes +
                         LayerRunner::WorkspaceBytes(model, tokens, WantsForward(b.strategy)) +
                         2 * tokens * hidden * 4 + options.io_threads * source.scratch_bytes();
  if (b.backend != nullptr) plan.workspace_bytes = b.backend->WorkspaceBytes(model, tokens);
  MOERT_RETURN_IF_ERROR(ApplyBudget(options.budget, b.strategy, model, &plan));
  return b;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::shared_ptr<const ExpertSource> source, const EngineOptions& options, Blueprint b)
      : source_(std::move(source)),
        options_(options),
        strategy_(std::move(b.strategy)),
        default_residency_(MakeLru()),
        plan_(b.plan),
        budget_(b.plan.budget_bytes),
        pool_(std::move(b.pool)),
        gemm_(std::move(b.gemm)),
        backend_(std::move(b.backend)),
        versions_(std::move(b.versions)) {}

  absl::Status Init();

  absl::StatusOr<StepId> BeginStep(const StepInfo& info) override;
  absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                       const MutableMatrixView& out) override;
  absl::Status ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                             const RoutedInput& routing, const MutableMatrixView& out) override;
  absl::Status EndStep(StepId step) override;
  absl::Status StepStatus(StepId step) override;
  absl::Status CancelStep(StepId step) override;
  absl::StatusOr<LeaseId> AcquireExperts(StepId step, int layer, absl::Span<const int32_t> experts,
                                         std::vector<ExpertView>* views) override;
  absl::Status ReleaseExperts(LeaseId lease) override;
  absl::Status PrefetchHint(int layer, absl::Span<const int32_t> experts) override;
  absl::StatusOr<std::vector<Residency>> ResidencyOf(int layer) override;
  absl::Status SetBudget(const Budget& budget) override;

  EngineStats stats() const override {
    std::lock_guard<std::mutex> lock(published_mu_);
    return published_;
  }
  MemoryPlan memory() const override {
    std::lock_guard<std::mutex> lock(published_mu_);
    return plan_;
  }
  int64_t now_ns() const override { return clock_->now_ns(); }
  const MoeModelSpec& model() const override { return source_->model(); }
  const std::string& strategy() const override { return strategy_.spec; }
  BackendKind backend() const override {
    return backend_ == nullptr ? BackendKind::kCpu : BackendKind::kCuda;
  }
  bool exact() const override { return strategy_.exact; }

 private:
  struct Step {
    Phase phase = Phase::kPrefill;
    int64_t rows = 0;
    int64_t number = 0;
    int64_t epoch = 0;
    int64_t begin_ns = 0;
    std::vector<int64_t> request_ids;
    void* stream = nullptr;
    PredictNext predict_next;
    std::shared_ptr<std::atomic<bool>> cancelled;
    absl::Status status;
  };

  absl::Status ReadConstants();
  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(int64_t block_bytes, int64_t blocks);
  absl::Status Run(StepId step_id, int layer, const MatrixView& hidden, const RoutedInput* routed,
                   const MutableMatrixView& out);
  absl::Status RunLocked(StepId step_id, int layer, const MatrixView& hidden,
                         const RoutedInput* routed, const MutableMatrixView& out);
  absl::Status SetBudgetLocked(const Budget& budget);
  absl::Status CheckLayer(int layer) const;
  /// Starts what hints asked for. Under mu_.
  void ApplyHints();
  void Log(LogLevel level, const std::string& line) const {
    if (options_.log != nullptr) options_.log(level, line);
  }
  absl::Status Preload();
  PolicyContext ContextOf(const Step& step, int layer) const {
    return {&source_->model(), step.number, step.phase, clock_->now_ns(), layer, step.request_ids};
  }
  /// Blocks of address space a pool reserves: every expert, and what is spare.
  int64_t MaxBlocks() const { return plan_.total_experts + plan_.spare; }
  absl::Status CheckViews(const Step& step, int layer, const MatrixView& hidden,
                          const MutableMatrixView& out) const;
  void Publish();

  const std::shared_ptr<const ExpertSource> source_;
  const EngineOptions options_;
  Strategy strategy_;
  const std::unique_ptr<ResidencyPolicy> default_residency_;
  MemoryPlan plan_;
  BudgetTracker budget_;
  std::unique_ptr<Clock> clock_;
  HardwareProfile profile_;
  std::shared_ptr<ThreadPool> pool_;
  std::unique_ptr<MixedGroupGemm> gemm_;
  std::unique_ptr<Backend> backend_;  // null: the CPU
  const std::vector<int> versions_;
  std::vector<LayerConstants> constants_;
  std::vector<AlignedArray<std::byte>> shared_records_;
  EngineStats stats_;

  LinkEstimate link_{&profile_};
  std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<VersionManager> manager_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<DeviceExecutor> device_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<LayerRunner> runner_;
  std::unique_ptr<Leases> leases_;
  AlignedArray<float> x_, y_;

  std::mutex mu_;  // everything above but plan_ and what is const
  std::map<StepId, Step> steps_;
  StepId next_step_ = 1;

  std::mutex cancel_mu_;  // never held for long, unlike mu_
  std::map<StepId, std::shared_ptr<std::atomic<bool>>> cancel_flags_;
  std::mutex hints_mu_;
  std::vector<ExpertKey> hints_;

  mutable std::mutex published_mu_;
  EngineStats published_;
};

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

absl::StatusOr<std::unique_ptr<BlockPool>> EngineImpl::MakePool(int64_t block_bytes,
                                                                int64_t blocks) {
  if (backend_ != nullptr) {
    return backend_->MakePool(block_bytes, MaxBlocks(), blocks, &budget_);
  }
  if (options_.allocator != nullptr && !options_.simulate) {
    return MakeHostBlockPool(options_.allocator.get(), block_bytes, MaxBlocks(), blocks, &budget_);
  }
  return (options_.simulate ? MakeCountingBlockPool : MakeRamBlockPool)(block_bytes, MaxBlocks(),
                                                                        blocks, &budget_);
}

absl::Status EngineImpl::Init() {
  profile_ = options_.profile;
  if (options_.link_gbps > 0) profile_.link_bytes_per_s = options_.link_gbps * 1e9;
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
    transfers = MakeVirtualLink(source_.get(), virtual_clock, &profile_);
  } else {
    clock_ = std::make_unique<WallClock>();
    transfers =
        MakeReaderQueue(source_.get(), clock_.get(), options_.io_threads, options_.link_gbps * 1e9);
  }
  if (backend_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(transfers, backend_->MakeTransfers(source_.get(), clock_.get(),
                                                              virtual_clock, &profile_, options_));
  }
  std::vector<ServedVersion> served;
  std::vector<std::unique_ptr<BlockPool>> pools(1);
  MOERT_ASSIGN_OR_RETURN(pools[0], MakePool(plan_.block_bytes, plan_.slots));
  if (strategy_.serving == Serving::kCache) {
    for (const int version : versions_) served.push_back({version, 0});
  } else {
    served = {{versions_[0], 0}, {versions_[1], 1}};
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<BlockPool> low,
                           MakePool(plan_.low_block_bytes, plan_.low_slots));
    pools.push_back(std::move(low));
  }
  ResidencyPolicy* residency =
      strategy_.residency ? strategy_.residency.get() : default_residency_.get();
  store_ = std::make_unique<ExpertStore>(source_.get(), std::move(served), std::move(pools),
                                         std::move(transfers), residency, &stats_);
  store_->SetLinkEstimate(&link_);
  if (strategy_.serving == Serving::kHotSet) {
    manager_ =
        MakeHotSet(&model, strategy_.precision.get(), strategy_.transitions, store_.get(), &stats_);
  } else if (strategy_.serving == Serving::kLowPlusCache) {
    manager_ = MakeHighCache(&model, strategy_.transitions, &profile_, store_.get(), &stats_);
  }

  std::vector<absl::Span<const float>> gates, biases;
  for (const LayerConstants& c : constants_) {
    gates.push_back(c.gate);
    biases.push_back(c.selection_bias);
  }
  router_ = std::make_unique<Router>(&model, std::move(gates), std::move(biases), pool_.get());
  prefetcher_ =
      std::make_unique<Prefetcher>(&model, strategy_.prefetch.get(), strategy_.prefetch_control,
                                   &profile_, &link_, store_.get(), manager_.get(), &stats_);
  if (strategy_.serving == Serving::kCache) prefetcher_->SetPrecision(strategy_.precision.get());
  if (strategy_.prefetch != nullptr) {
    // The capacities of the store's making knew of no prefetch.
    store_->SetPrefetchOutlook(prefetcher_->outlook());
    store_->SetCapacity(plan_.slots);
  }
  // The CPU backend's CPU is the executor of the fast tier: there is none beside it.
  const bool cpu_executor = options_.simulate && profile_.cpu_executor;
  scheduler_ = std::make_unique<Scheduler>(&model, strategy_.placement.get(), &profile_,
                                           store_.get(), &stats_, cpu_executor);
  LayerParts parts;
  parts.model = &model;
  parts.profile = &profile_;
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
  parts.stats = &stats_;
  parts.trace = options_.trace.get();
  parts.simulate = options_.simulate;
  if (backend_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(
        device_,
        backend_->MakeExecutor({source_.get(), versions_, &constants_, parts.shared_records,
                                options_.max_tokens_per_forward, &stats_}));
    parts.device = device_.get();
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
  stats_ = EngineStats{};  // what opening took is not what running does
  store_->SetTrace(options_.trace.get());
  leases_ = std::make_unique<Leases>(store_.get(), &stats_);
  Publish();
  Log(LogLevel::kInfo,
      fmt::format("{} opened, strategy {}, budget {}: {}", source_->name(), strategy_.spec,
                  BytesText(plan_.budget_bytes), plan_.ToString()));
  return absl::OkStatus();
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

void EngineImpl::Publish() {
  stats_.budget_bytes = budget_.limit();
  stats_.peak_bytes = budget_.peak();
  stats_.fixed_bytes = plan_.fixed_bytes();
  stats_.pool_bytes = budget_.used() - plan_.fixed_bytes();
  std::lock_guard<std::mutex> lock(published_mu_);
  published_ = stats_;
}

absl::StatusOr<StepId> EngineImpl::BeginStep(const StepInfo& info) {
  if (info.rows < 1 || info.rows > options_.max_tokens_per_forward) {
    return absl::InvalidArgumentError(
        fmt::format("step of {} rows: must be in [1, {}] (max_tokens_per_forward)", info.rows,
                    options_.max_tokens_per_forward));
  }
  if (!info.request_ids.empty() && static_cast<int64_t>(info.request_ids.size()) != info.rows) {
    return absl::InvalidArgumentError(
        fmt::format("step of {} rows has {} request ids", info.rows, info.request_ids.size()));
  }
  std::lock_guard<std::mutex> lock(mu_);
  const StepId id = next_step_++;
  Step& step = steps_[id];
  step.phase = info.phase;
  step.rows = info.rows;
  step.number = id - 1;
  step.begin_ns = clock_->now_ns();
  step.request_ids.assign(info.request_ids.begin(), info.request_ids.end());
  const PolicyContext context = ContextOf(step, 0);
  if (manager_ != nullptr) {
    manager_->BeforeStep(context);
  } else {
    store_->RefreshCapacity(context);
  }
  step.epoch = store_->OpenStep();
  if (manager_ != nullptr) manager_->AfterStepOpened(context);
  step.cancelled = std::make_shared<std::atomic<bool>>(false);
  step.stream = info.stream;
  step.predict_next = info.predict_next;
  if (device_ != nullptr) {
    const absl::Status opened = device_->OpenStep(*store_, step.epoch, step.stream);
    if (!opened.ok()) {
      store_->CloseStep(step.epoch);
      steps_.erase(id);
      return opened;
    }
  }
  const std::lock_guard<std::mutex> cancel_lock(cancel_mu_);
  cancel_flags_[id] = step.cancelled;
  return id;
}

absl::Status EngineImpl::CheckViews(const Step& step, int layer, const MatrixView& hidden,
                                    const MutableMatrixView& out) const {
  const MoeModelSpec& model = source_->model();
  if (layer < 0 || layer >= model.num_layers()) {
    return absl::InvalidArgumentError(
        fmt::format("layer {}: must be in [0, {})", layer, model.num_layers()));
  }
  if (options_.simulate) return absl::OkStatus();
  const auto check = [&](absl::string_view what, const void* data, DType dtype, int64_t rows,
                         int64_t cols, int64_t stride) -> absl::Status {
    if (data == nullptr || rows != step.rows || cols != model.layers[layer].hidden ||
        stride < cols) {
      return absl::InvalidArgumentError(
          fmt::format("{}: [{}, {}] with row stride {}{}; layer {} of this step takes [{}, {}]",
                      what, rows, cols, stride, data == nullptr ? " at null" : "", layer, step.rows,
                      model.layers[layer].hidden));
    }
    if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
      return absl::InvalidArgumentError(
          fmt::format("{}: dtype {}; legal: f32, bf16, f16", what, DTypeName(dtype)));
    }
    return absl::OkStatus();
  };
  MOERT_RETURN_IF_ERROR(
      check("hidden", hidden.data, hidden.dtype, hidden.rows, hidden.cols, hidden.row_stride));
  return check("out", out.data, out.dtype, out.rows, out.cols, out.row_stride);
}

absl::Status EngineImpl::Forward(StepId step, int layer, const MatrixView& hidden,
                                 const MutableMatrixView& out) {
  if (options_.simulate) {
    return absl::FailedPreconditionError("simulate: layers run through ForwardRouted only");
  }
  return Run(step, layer, hidden, nullptr, out);
}

absl::Status EngineImpl::ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                                       const RoutedInput& routing, const MutableMatrixView& out) {
  return Run(step, layer, hidden, &routing, out);
}

absl::Status EngineImpl::Run(StepId step_id, int layer, const MatrixView& hidden,
                             const RoutedInput* routed, const MutableMatrixView& out) {
  absl::Status status;
  int64_t fallbacks = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    fallbacks = stats_.policy_fallbacks;
    status = RunLocked(step_id, layer, hidden, routed, out);
    fallbacks = stats_.policy_fallbacks - fallbacks;
  }
  if (!status.ok() && !absl::IsCancelled(status)) {
    Log(LogLevel::kError, fmt::format("layer {}: {}", layer, status.ToString()));
  }
  if (fallbacks > 0) {
    Log(LogLevel::kWarning,
        fmt::format("layer {}: {} invalid policy decisions were replaced by the default", layer,
                    fallbacks));
  }
  return status;
}

absl::Status EngineImpl::RunLocked(StepId step_id, int layer, const MatrixView& hidden,
                                   const RoutedInput* routed, const MutableMatrixView& out) {
  const auto it = steps_.find(step_id);
  if (it == steps_.end()) {
    return absl::InvalidArgumentError(fmt::format("step {} is not open", step_id));
  }
  Step& step = it->second;
  MOERT_RETURN_IF_ERROR(CheckViews(step, layer, hidden, out));
  if (step.cancelled->load(std::memory_order_relaxed)) {
    if (step.status.ok()) step.status = absl::CancelledError("the step was cancelled");
    return absl::CancelledError("the step was cancelled");
  }
  ApplyHints();
  const bool on_cpu = !options_.simulate && device_ == nullptr;
  if (on_cpu) WidenRows(hidden, x_.data());
  const absl::Status status = runner_->Forward({ContextOf(step, layer),
                                                step.epoch,
                                                x_.data(),
                                                step.rows,
                                                routed,
                                                step.begin_ns,
                                                step.cancelled.get(),
                                                &step.predict_next,
                                                {layer, step.epoch, hidden, out, step.stream}},
                                               y_.data());
  if (status.ok()) {
    if (on_cpu) NarrowRows(y_.data(), out);
  } else if (step.status.ok()) {
    step.status = status;
  }
  Publish();
  return status;
}

absl::Status EngineImpl::EndStep(StepId step) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) {
    return absl::InvalidArgumentError(fmt::format("step {} is not open", step));
  }
  absl::Status status = it->second.status;
  if (device_ != nullptr) status.Update(device_->CloseStep(it->second.stream));
  leases_->ReleaseStep(step);
  store_->CloseStep(it->second.epoch);
  if (options_.trace != nullptr) {
    options_.trace->OnSpan({TimelineTrack::kSteps,
                            it->second.phase == Phase::kPrefill ? "prefill" : "decode",
                            it->second.begin_ns, clock_->now_ns(), it->second.number});
  }
  steps_.erase(it);
  const std::lock_guard<std::mutex> cancel_lock(cancel_mu_);
  cancel_flags_.erase(step);
  return status;
}

absl::Status EngineImpl::CancelStep(StepId step) {
  const std::lock_guard<std::mutex> lock(cancel_mu_);
  const auto it = cancel_flags_.find(step);
  if (it == cancel_flags_.end()) {
    return absl::InvalidArgumentError(fmt::format("step {} is not open", step));
  }
  it->second->store(true, std::memory_order_relaxed);
  return absl::OkStatus();
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
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) {
    return absl::InvalidArgumentError(fmt::format("step {} is not open", step));
  }
  absl::StatusOr<LeaseId> lease =
      leases_->Acquire(step, it->second.epoch, ContextOf(it->second, layer), experts, views);
  Publish();
  return lease;
}

absl::Status EngineImpl::ReleaseExperts(LeaseId lease) {
  std::lock_guard<std::mutex> lock(mu_);
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
    if (manager_ != nullptr) {
      manager_->Want(context, key, 1);
      continue;
    }
    if (store_->Latest(key).record != nullptr || store_->Arriving(key)) continue;
    stats_.prefetch_issued += store_->StartLoad(key, 0, LoadReason::kPrefetch, context);
  }
}

absl::StatusOr<std::vector<Residency>> EngineImpl::ResidencyOf(int layer) {
  MOERT_RETURN_IF_ERROR(CheckLayer(layer));
  std::lock_guard<std::mutex> lock(mu_);
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

absl::Status EngineImpl::StepStatus(StepId step) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) {
    return absl::InvalidArgumentError(fmt::format("step {} is not open", step));
  }
  return it->second.status;
}

absl::Status EngineImpl::SetBudget(const Budget& budget) {
  absl::Status status;
  std::string line;
  {
    std::lock_guard<std::mutex> lock(mu_);
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
  {
    std::lock_guard<std::mutex> published(published_mu_);
    plan_ = plan;
  }
  Publish();
  return absl::OkStatus();
}

}  // namespace

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
