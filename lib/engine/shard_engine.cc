
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/mutex.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "engine/engine_impl.h"
#include "engine/shard.h"
#include "model/check_layer.h"
#include "moert/thread_pool.h"
#include "prefetch/prefetch_rule.h"

namespace moert {
namespace {

/// Translates expert numbers of the whole model to numbers within the shard.
class Numbering {
 public:
  Numbering(const ShardPlan& plan, const ExpertNumbering& numbering)
      : own_(plan.experts), local_(numbering) {}

  absl::Span<const int32_t> own(int layer) const { return own_[layer]; }
  int experts(int layer) const { return static_cast<int>(local_[layer].size()); }
  /// The number of expert `e` of the layer within the shard; -1: it is in another shard.
  int32_t Local(int layer, int32_t e) const { return local_[layer][e]; }

  /// Translates ids in [0, E), and keeps -1; InvalidArgument names any other id.
  absl::StatusOr<std::vector<int32_t>> Ids(int layer, absl::Span<const int32_t> ids) const {
    std::vector<int32_t> local;
    local.reserve(ids.size());
    for (const int32_t e : ids) {
      if (e < -1 || e >= experts(layer)) {
        return InvalidArgument(
            "layer {}: expert {} does not exist; legal are [0, {}) and -1: not here", layer, e,
            experts(layer));
      }
      local.push_back(e < 0 ? -1 : Local(layer, e));
    }
    return local;
  }
  /// The columns of this shard's experts, out of [rows, E].
  absl::StatusOr<std::vector<float>> Columns(int layer, const char* what,
                                             absl::Span<const float> all) const {
    std::vector<float> here;
    const auto width = static_cast<size_t>(experts(layer));
    if (all.size() % width != 0) {
      return InvalidArgument("{}: {} values; takes {} a row", what, all.size(), width);
    }
    for (size_t row = 0; row < all.size(); row += width) {
      for (const int32_t e : own(layer)) here.push_back(all[row + static_cast<size_t>(e)]);
    }
    return here;
  }
  /// Translates ids that must all be of this shard.
  absl::StatusOr<std::vector<int32_t>> Own(int layer, absl::Span<const int32_t> ids) const {
    MOERT_ASSIGN_OR_RETURN(std::vector<int32_t> local, Ids(layer, ids));
    const auto absent = std::find(local.begin(), local.end(), -1);
    if (absent == local.end()) return local;
    return InvalidArgument("layer {} expert {} is not of this shard", layer,
                           ids[absent - local.begin()]);
  }

 private:
  const std::vector<std::vector<int32_t>> own_;
  const ExpertNumbering& local_;
};

class ShardEngine final : public Engine {
 public:
  ShardEngine(std::shared_ptr<const ExpertSource> whole, const ShardPlan& plan, PartOfModel part)
      : whole_(std::move(whole)), part_(std::move(part)), numbers_(plan, part_.numbering) {}

  absl::Status Open(std::shared_ptr<const ExpertSource> part, EngineOptions options) {
    MOERT_RETURN_IF_ERROR(MakeRouter(&options));
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<EngineImpl> engine,
                           EngineImpl::Create(std::move(part), options, part_));
    if (!engine->hidden_on_host()) router_ = nullptr;
    engine_ = std::move(engine);
    return absl::OkStatus();
  }

  absl::StatusOr<StepId> BeginStep(const StepInfo& info) override {
    return engine_->BeginStep(info);
  }
  absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                       const MutableMatrixView& out) override;
  absl::Status ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                             const RoutedInput& routing, const MutableMatrixView& out) override;
  absl::Status EndStep(StepId step) override { return engine_->EndStep(step); }
  absl::Status StepStatus(StepId step) override { return engine_->StepStatus(step); }
  absl::Status CancelStep(StepId step) override { return engine_->CancelStep(step); }

  absl::StatusOr<LeaseId> AcquireExperts(StepId step, int layer, absl::Span<const int32_t> experts,
                                         std::vector<ExpertView>* views) override {
    MOERT_RETURN_IF_ERROR(CheckLayer(model(), layer));
    MOERT_ASSIGN_OR_RETURN(const std::vector<int32_t> own, numbers_.Own(layer, experts));
    MOERT_ASSIGN_OR_RETURN(const LeaseId lease, engine_->AcquireExperts(step, layer, own, views));
    for (size_t i = 0; i < views->size(); ++i) (*views)[i].expert = experts[i];
    return lease;
  }
  absl::Status UseLease(
      LeaseId lease,
      absl::FunctionRef<absl::Status(absl::Span<const ExpertView>)> use) const override {
    return engine_->UseLease(lease, use);
  }
  absl::Status ReleaseExperts(LeaseId lease) override { return engine_->ReleaseExperts(lease); }
  absl::Status Fetch(StepId step, int layer, const FetchInput& input, SlotView* view) override;
  absl::Status TakeCpuRows(StepId step, int layer, const MutableMatrixView& rows) override {
    return engine_->TakeCpuRows(step, layer, rows);
  }
  absl::Status ReleaseFetched(StepId step, int layer) override {
    return engine_->ReleaseFetched(step, layer);
  }
  absl::Status CopyLayer(StepId, int, absl::Span<const int32_t>, std::byte*, SlotView*) override {
    return absl::UnimplementedError("shard: copies of whole layers");
  }
  absl::Status MultiplyOnCpu(StepId, int, const OpaqueProduct&) override {
    return absl::UnimplementedError("shard: products on the CPU of experts that the host chooses");
  }

  absl::Status PrefetchHint(int layer, absl::Span<const int32_t> experts) override {
    MOERT_RETURN_IF_ERROR(CheckLayer(model(), layer));
    MOERT_ASSIGN_OR_RETURN(std::vector<int32_t> local, numbers_.Ids(layer, experts));
    std::erase(local, -1);  // ignores experts of other shards
    return engine_->PrefetchHint(layer, local);
  }
  absl::StatusOr<std::vector<Residency>> ResidencyOf(int layer) override {
    MOERT_RETURN_IF_ERROR(CheckLayer(model(), layer));
    MOERT_ASSIGN_OR_RETURN(const std::vector<Residency> own, engine_->ResidencyOf(layer));
    std::vector<Residency> all(static_cast<size_t>(numbers_.experts(layer)), Residency::kAbsent);
    for (size_t i = 0; i < own.size(); ++i) all[numbers_.own(layer)[i]] = own[i];
    return all;
  }
  absl::Status SetBudget(const Budget& budget) override { return engine_->SetBudget(budget); }

  EngineStats stats() const override { return engine_->stats(); }
  MemoryPlan memory() const override { return engine_->memory(); }
  int64_t now_ns() const override { return engine_->now_ns(); }
  const MoeModelSpec& model() const override { return whole_->model(); }
  const std::string& strategy() const override { return engine_->strategy(); }
  BackendKind backend() const override { return engine_->backend(); }
  Promise promise() const override { return engine_->promise(); }
  const GraphNeeds& graph_needs() const override { return engine_->graph_needs(); }

 private:
  absl::Status MakeRouter(EngineOptions* options);
  int Next(int layer) const { return (layer + 1) % model().num_layers(); }

  // Memory that a localized input points to.
  struct LocalArrays {
    std::vector<int32_t> ids;
    std::vector<float> scores, next_scores;
  };
  /// `input` (RoutedInput or FetchInput) in the shard's numbering.
  template <typename Input>
  absl::StatusOr<Input> Localized(int layer, const Input& input, LocalArrays* arrays) const {
    MOERT_ASSIGN_OR_RETURN(arrays->ids, numbers_.Ids(layer, input.ids));
    MOERT_ASSIGN_OR_RETURN(arrays->scores, numbers_.Columns(layer, "scores", input.scores));
    MOERT_ASSIGN_OR_RETURN(arrays->next_scores,
                           numbers_.Columns(Next(layer), "next_scores", input.next_scores));
    Input local = input;
    local.ids = arrays->ids;
    local.scores = arrays->scores;
    local.next_scores = arrays->next_scores;
    return local;
  }

  const std::shared_ptr<const ExpertSource> whole_;
  const PartOfModel part_;
  const Numbering numbers_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<LayerConstants> gates_;
  bool next_gate_ = false;  // the prefetch policy reads its scores
  Mutex mu_;
  std::unique_ptr<Router> router_ ABSL_PT_GUARDED_BY(mu_);  // null: the host routes
  std::vector<float> x_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Engine> engine_;
};

/// If the library routes, each shard routes over all experts of the model.
absl::Status ShardEngine::MakeRouter(EngineOptions* options) {
  MOERT_ASSIGN_OR_RETURN(const Strategy strategy,
                         MakeStrategy(options->strategy, options->promise));
  if (strategy.routing != nullptr) {
    return InvalidArgument(
        "strategy {}: its routing goes by what is resident here, which other shards do not know; "
        "choose one that does not substitute",
        strategy.spec);
  }
  const std::vector<MoeLayerSpec>& layers = model().layers;
  const bool external = std::any_of(layers.begin(), layers.end(), [](const MoeLayerSpec& layer) {
    return layer.routing.external();
  });
  if (external || !RoutesLayers(*options)) return absl::OkStatus();
  next_gate_ = WantsNextGate(strategy.prefetch.get());
  if (options->thread_pool == nullptr) {
    ThreadPoolOptions threads;
    threads.threads = options->threads;
    threads.cpus = options->cpus;
    MOERT_ASSIGN_OR_RETURN(options->thread_pool, CreateThreadPool(threads));
  }
  pool_ = options->thread_pool;
  std::vector<absl::Span<const float>> gates, biases;
  for (int l = 0; l < model().num_layers(); ++l) {
    MOERT_ASSIGN_OR_RETURN(LayerConstants constants, whole_->ReadConstants(l));
    constants.shared_expert = {};
    gates_.push_back(std::move(constants));
  }
  for (const LayerConstants& constants : gates_) {
    gates.push_back(constants.gate);
    biases.push_back(constants.selection_bias);
  }
  MOERT_ASSIGN_OR_RETURN(
      router_, Router::Create(&model(), std::move(gates), std::move(biases), pool_.get()));
  return absl::OkStatus();
}

absl::Status ShardEngine::Forward(StepId step, int layer, const MatrixView& hidden,
                                  const MutableMatrixView& out) {
  MOERT_RETURN_IF_ERROR(CheckLayer(model(), layer));
  if (router_ == nullptr) return engine_->Forward(step, layer, hidden, out);  // returns the error
  const MoeLayerSpec& spec = model().layers[layer];
  const ExecutorCall call{layer, 0, hidden.rows, hidden, out, nullptr};
  MOERT_RETURN_IF_ERROR(Executor::CheckRows("hidden", hidden, call, spec));
  RoutingResult routing;
  {
    const MutexLock lock(&mu_);
    x_.resize(hidden.rows * hidden.cols);
    WidenRows(hidden, x_.data());
    const bool next_gate = next_gate_ && Next(layer) != 0;
    MOERT_RETURN_IF_ERROR(
        router_->Route(layer, x_.data(), hidden.rows, {}, {}, {}, next_gate, &routing));
  }
  RoutedInput input;
  input.ids = routing.ids;
  input.weights = routing.weights;
  input.scores = routing.scores;
  input.next_scores = routing.next_scores;
  return ForwardRouted(step, layer, hidden, input, out);
}

absl::Status ShardEngine::ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                                        const RoutedInput& routing, const MutableMatrixView& out) {
  MOERT_RETURN_IF_ERROR(CheckLayer(model(), layer));
  LocalArrays arrays;
  if (routing.place == Place::kDevice) {  // the executor renumbers ids on the device
    RoutedInput local = routing;
    MOERT_ASSIGN_OR_RETURN(arrays.next_scores,
                           numbers_.Columns(Next(layer), "next_scores", routing.next_scores));
    local.next_scores = arrays.next_scores;
    return engine_->ForwardRouted(step, layer, hidden, local, out);
  }
  MOERT_ASSIGN_OR_RETURN(const RoutedInput local, Localized(layer, routing, &arrays));
  MOERT_RETURN_IF_ERROR(engine_->ForwardRouted(step, layer, hidden, local, out));
  for (int32_t& used : routing.used_ids) {
    if (used >= 0) used = numbers_.own(layer)[used];
  }
  return absl::OkStatus();
}

absl::Status ShardEngine::Fetch(StepId step, int layer, const FetchInput& input, SlotView* view) {
  MOERT_RETURN_IF_ERROR(CheckLayer(model(), layer));
  if (input.place == Place::kDevice) {
    return absl::UnimplementedError(
        "shard: Fetch takes ids of the whole model in host memory, not on the device");
  }
  LocalArrays arrays;
  MOERT_ASSIGN_OR_RETURN(const FetchInput local, Localized(layer, input, &arrays));
  // slot_of_expert lists the shard's experts, in their order.
  return engine_->Fetch(step, layer, local, view);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeShardEngine(std::shared_ptr<const ExpertSource> whole,
                                                        std::shared_ptr<const ExpertSource> part,
                                                        const ShardPlan& plan,
                                                        const EngineOptions& options) {
  PartOfModel of = PartOf(whole->model(), part->model(), options.shard);
  auto engine = std::make_unique<ShardEngine>(std::move(whole), plan, std::move(of));
  MOERT_RETURN_IF_ERROR(engine->Open(std::move(part), options));
  return engine;
}

}  // namespace moert
