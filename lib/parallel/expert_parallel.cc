#include "moert/expert_parallel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/exception_status.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "engine/shard.h"
#include "exec/side_stream.h"
#include "fmt/format.h"
#include "moert/strategy.h"
#include "parallel/row_parts.h"
#include "parallel/token_exchange.h"

namespace moert {
namespace {

class ExpertParallelImpl final : public ExpertParallel {
 public:
  ExpertParallelImpl(std::unique_ptr<Engine> engine, const std::vector<ShardPlan>& plans,
                     std::shared_ptr<Collectives> group, std::unique_ptr<SideStream> side,
                     int64_t max_rows)
      : group_(std::move(group)),
        side_(std::move(side)),
        engine_(std::move(engine)),
        exchange_(engine_->model(), plans, group_.get()),
        max_rows_(max_rows) {}

  absl::StatusOr<StepId> BeginStep(const StepInfo& info, TokenPlacement placement) override;
  absl::Status Forward(StepId step, int layer, const MatrixView& hidden, const RoutedInput* routing,
                       const MutableMatrixView& out) override;
  absl::Status EndStep(StepId id) override;

  /// Whether sums can be made on a stream of their own.
  bool sums_beside() const { return side_ != nullptr; }
  void SumInLine() { side_.reset(); }

  void SetPartRows(int64_t rows) override { part_rows_ = rows; }
  Engine* engine() override { return engine_.get(); }
  ExpertParallelStats stats() const override {
    ExpertParallelStats stats = stats_;
    stats.sent_rows = exchange_.sent_rows();
    stats.received_rows = exchange_.received_rows();
    return stats;
  }

 private:
  struct Step {
    TokenPlacement placement = TokenPlacement::kReplicated;
    int64_t rows = 0;         // of this rank
    int64_t engine_rows = 0;  // of the engine's calls, its parts together
    void* stream = nullptr;
    // Each a step of the engine; one, but for long ones on a device.
    std::vector<RowPart> parts;
    std::vector<StepId> ids;
  };

  absl::StatusOr<StepId> OpenParts(const StepInfo& info, Step step);

  absl::Status CheckRows(const StepInfo& info, TokenPlacement placement, int64_t* engine_rows);
  absl::Status CheckCall(const Step& step, int layer, const MatrixView& hidden,
                         const RoutedInput* routing, const MutableMatrixView& out) const;
  absl::Status Replicated(const Step& step, int layer, const MatrixView& hidden,
                          const RoutedInput* routing, const MutableMatrixView& out);
  absl::Status AddUp(const Step& step, size_t part, const MutableMatrixView& out);
  absl::Status Own(StepId id, const Step& step, int layer, const MatrixView& hidden,
                   const RoutedInput& routing, const MutableMatrixView& out);
  absl::Status Multiply(StepId id, const Step& step, int layer, int64_t k, ExchangedRows* rows);
  /// A rank that cannot go on tells the others.
  absl::Status OrAbort(absl::Status status) {
    if (!status.ok()) group_->Abort(status);
    return status;
  }
  /// Runs a collective on the host, timed.
  template <typename Call>
  absl::Status Timed(const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = call();
    const auto took = std::chrono::steady_clock::now() - begin;
    stats_.exchange_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    return status;
  }

  const std::shared_ptr<Collectives> group_;
  std::unique_ptr<SideStream> side_;  // null: nothing runs beside the engine
  const std::unique_ptr<Engine> engine_;
  TokenExchange exchange_;
  const int64_t max_rows_;
  int64_t part_rows_ = 0;
  std::map<StepId, Step> steps_;
  ExpertParallelStats stats_;
  std::vector<float> x_, y_;  // scratch
};

absl::Status ExpertParallelImpl::CheckRows(const StepInfo& info, TokenPlacement placement,
                                           int64_t* engine_rows) {
  *engine_rows = info.rows;
  if (info.stream != nullptr) {
    // On a device the host does not wait for others: the same rows are the caller's promise.
    return placement == TokenPlacement::kReplicated
               ? absl::OkStatus()
               : absl::UnimplementedError("own tokens: on the cpu backend only");
  }
  const int64_t mine[2] = {info.rows, static_cast<int64_t>(placement)};
  std::vector<int64_t> all(2 * static_cast<size_t>(group_->size()));
  MOERT_RETURN_IF_ERROR(
      Timed([&] { return group_->AllGather(mine, sizeof(mine), all.data(), nullptr); }));
  int64_t total = 0;
  for (size_t r = 0; 2 * r < all.size(); ++r) {
    total += all[2 * r];
    const bool same = placement == TokenPlacement::kPerRank || all[2 * r] == info.rows;
    if (same && all[2 * r + 1] == mine[1]) continue;
    return absl::InvalidArgumentError(
        fmt::format("ranks disagree about a step: rank {} has {} {} rows, rank {} {} {} rows",
                    group_->rank(), info.rows, mine[1] == 0 ? "replicated" : "own", r, all[2 * r],
                    all[2 * r + 1] == 0 ? "replicated" : "own"));
  }
  if (placement == TokenPlacement::kReplicated) return absl::OkStatus();
  *engine_rows = std::max<int64_t>(total, 1);
  if (total <= max_rows_) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "a step of {} rows of all ranks: one rank may be asked for all of them, and takes "
      "{} (max_tokens_per_forward)",
      total, max_rows_));
}

absl::StatusOr<StepId> ExpertParallelImpl::BeginStep(const StepInfo& info,
                                                     TokenPlacement placement) try {
  Step step{placement, info.rows, info.rows, info.stream};
  if (engine_->backend() == BackendKind::kCuda && info.stream == nullptr) {
    return OrAbort(absl::InvalidArgumentError("stream: null; a group on a device needs one"));
  }
  MOERT_RETURN_IF_ERROR(CheckRows(info, placement, &step.engine_rows));
  StepInfo engine_info = info;
  if (placement == TokenPlacement::kPerRank) {
    if (info.rows < 0) return OrAbort(absl::InvalidArgumentError("rows: must not be negative"));
    engine_info.rows = step.engine_rows;
    engine_info.request_ids = {};  // rows of several ranks
    engine_info.positions = {};
  }
  return OpenParts(engine_info, std::move(step));
} catch (...) {
  return OrAbort(ExceptionStatus("beginning a step"));
}

absl::StatusOr<StepId> ExpertParallelImpl::OpenParts(const StepInfo& info, Step step) {
  step.parts = CutRows(info.rows, side_ == nullptr ? 0 : part_rows_);
  absl::Cleanup end = [&] {
    for (const StepId id : step.ids) engine_->EndStep(id).IgnoreError();
  };
  step.ids.reserve(step.parts.size());
  for (const RowPart& part : step.parts) {
    const absl::StatusOr<StepId> id =
        engine_->BeginStep(step.parts.size() == 1 ? info : PartOf(info, part));
    if (!id.ok()) return OrAbort(id.status());
    step.ids.push_back(*id);
  }
  const StepId first = step.ids[0];
  steps_[first] = step;
  std::move(end).Cancel();
  return first;
}

absl::Status ExpertParallelImpl::EndStep(StepId id) {
  const auto found = steps_.find(id);
  if (found == steps_.end()) return engine_->EndStep(id);  // says what is wrong with it
  absl::Status status;
  for (const StepId part : found->second.ids) status.Update(engine_->EndStep(part));
  steps_.erase(found);
  return status;
}

absl::Status ExpertParallelImpl::CheckCall(const Step& step, int layer, const MatrixView& hidden,
                                           const RoutedInput* routing,
                                           const MutableMatrixView& out) const {
  const MoeModelSpec& model = engine_->model();
  if (layer < 0 || layer >= model.num_layers()) {
    return absl::InvalidArgumentError(
        fmt::format("layer {}: must be in [0, {})", layer, model.num_layers()));
  }
  const MoeLayerSpec& spec = model.layers[static_cast<size_t>(layer)];
  if (hidden.rows != step.rows || out.rows != step.rows || hidden.cols != spec.hidden ||
      out.cols != spec.hidden) {
    return absl::InvalidArgumentError(
        fmt::format("layer {}: hidden [{}, {}], out [{}, {}]; this rank's step takes [{}, {}]",
                    layer, hidden.rows, hidden.cols, out.rows, out.cols, step.rows, spec.hidden));
  }
  if (step.placement == TokenPlacement::kReplicated) return absl::OkStatus();
  if (routing == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("layer {}: own tokens bring their routing", layer));
  }
  const auto pairs = static_cast<size_t>(step.rows * spec.routing.top_k);
  if (routing->place != Place::kHost || routing->ids.size() != pairs ||
      routing->weights.size() != pairs) {
    return absl::InvalidArgumentError(fmt::format(
        "layer {}: {} ids, {} weights; this rank's step takes [{}, {}] in host memory", layer,
        routing->ids.size(), routing->weights.size(), step.rows, spec.routing.top_k));
  }
  for (const int32_t e : routing->ids) {
    if (e >= -1 && e < spec.num_experts) continue;
    return absl::InvalidArgumentError(
        fmt::format("layer {}: expert {} does not exist; legal are [0, {}) and -1: none", layer, e,
                    spec.num_experts));
  }
  return absl::OkStatus();
}

absl::Status ExpertParallelImpl::Forward(StepId id, int layer, const MatrixView& hidden,
                                         const RoutedInput* routing,
                                         const MutableMatrixView& out) try {
  const auto found = steps_.find(id);
  if (found == steps_.end()) {
    return OrAbort(absl::FailedPreconditionError(fmt::format("step {} is not open", id)));
  }
  const Step& step = found->second;
  MOERT_RETURN_IF_ERROR(OrAbort(CheckCall(step, layer, hidden, routing, out)));
  return OrAbort(step.placement == TokenPlacement::kReplicated
                     ? Replicated(step, layer, hidden, routing, out)
                     : Own(id, step, layer, hidden, *routing, out));
} catch (...) {
  return OrAbort(ExceptionStatus("a layer call"));
}

absl::Status ExpertParallelImpl::Replicated(const Step& step, int layer, const MatrixView& hidden,
                                            const RoutedInput* routing,
                                            const MutableMatrixView& out) {
  const bool device = engine_->backend() == BackendKind::kCuda;
  const bool in_place = out.dtype == DType::kF32 && out.row_stride == out.cols;
  if (device && !in_place) {
    return absl::InvalidArgumentError("out: on a device f32 and contiguous, it is summed in place");
  }
  MutableMatrixView sum = out;
  if (!in_place) {
    y_.resize(static_cast<size_t>(step.rows * out.cols));
    sum = {y_.data(), DType::kF32, step.rows, out.cols, out.cols};
  }
  for (size_t p = 0; p < step.parts.size(); ++p) {
    const RowPart& rows = step.parts[p];
    const MatrixView x = PartOf(hidden, rows);
    const MutableMatrixView y = PartOf(sum, rows);
    MOERT_RETURN_IF_ERROR(
        routing == nullptr
            ? engine_->Forward(step.ids[p], layer, x, y)
            : engine_->ForwardRouted(step.ids[p], layer, x, PartOf(*routing, step.rows, rows), y));
    MOERT_RETURN_IF_ERROR(AddUp(step, p, y));
  }
  if (step.parts.size() > 1) MOERT_RETURN_IF_ERROR(side_->Join(step.stream));
  if (!in_place) NarrowRows(y_.data(), out);
  return absl::OkStatus();
}

/// A part's sum over the ranks; beside the step's stream where there are several.
absl::Status ExpertParallelImpl::AddUp(const Step& step, size_t part,
                                       const MutableMatrixView& out) {
  void* stream = step.stream;
  if (step.parts.size() > 1) {
    MOERT_RETURN_IF_ERROR(side_->Fork(step.stream));
    stream = side_->get();
  }
  const int64_t count = step.parts[part].count * out.cols;
  stats_.all_reduced_bytes += count * 4;
  return Timed([&] { return group_->AllReduce(static_cast<float*>(out.data), count, stream); });
}

absl::Status ExpertParallelImpl::Own(StepId id, const Step& step, int layer,
                                     const MatrixView& hidden, const RoutedInput& routing,
                                     const MutableMatrixView& out) {
  x_.resize(static_cast<size_t>(step.rows * hidden.cols));
  if (step.rows > 0) WidenRows(hidden, x_.data());
  ExchangedRows received;
  MOERT_RETURN_IF_ERROR(Timed([&] {
    return exchange_.Dispatch(layer, step.rows, x_.data(), routing.ids, routing.weights, &received);
  }));
  const int64_t k = engine_->model().layers[static_cast<size_t>(layer)].routing.top_k;
  MOERT_RETURN_IF_ERROR(Multiply(id, step, layer, k, &received));
  MOERT_RETURN_IF_ERROR(Timed([&] { return exchange_.Combine(y_.data(), x_.data()); }));
  if (step.rows > 0) NarrowRows(x_.data(), out);
  return absl::OkStatus();
}

/// Into y_. Calls of a step have as many rows as all ranks together: what is missing has no expert.
absl::Status ExpertParallelImpl::Multiply(StepId id, const Step& step, int layer, int64_t k,
                                          ExchangedRows* rows) {
  const int64_t cols = engine_->model().layers[static_cast<size_t>(layer)].hidden;
  rows->hidden.resize(static_cast<size_t>(step.engine_rows * cols));
  rows->ids.resize(static_cast<size_t>(step.engine_rows * k), -1);
  rows->weights.resize(static_cast<size_t>(step.engine_rows * k));
  y_.resize(rows->hidden.size());
  RoutedInput routing;
  routing.ids = rows->ids;
  routing.weights = rows->weights;
  return engine_->ForwardRouted(id, layer,
                                {rows->hidden.data(), DType::kF32, step.engine_rows, cols, cols},
                                routing, {y_.data(), DType::kF32, step.engine_rows, cols, cols});
}

/// Whether an engine over the options never brings an expert in a step.
absl::StatusOr<bool> HoldsAll(const EngineOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const Strategy strategy, MakeStrategy(options.strategy));
  return strategy.preload;
}

absl::StatusOr<std::unique_ptr<ExpertParallelImpl>> MakeRank(
    const std::shared_ptr<const ExpertSource>& source, EngineOptions options,
    absl::Span<const Shard> shards, const std::shared_ptr<Collectives>& group) {
  if (static_cast<int>(shards.size()) != group->size()) {
    return absl::InvalidArgumentError(fmt::format(
        "{} shards for a group of {} ranks: each rank has one", shards.size(), group->size()));
  }
  MOERT_RETURN_IF_ERROR(CheckShards(source->model(), shards));
  std::vector<ShardPlan> plans;
  for (const Shard& shard : shards) {
    MOERT_ASSIGN_OR_RETURN(ShardPlan plan, ResolveShard(shard, source->model()));
    plans.push_back(std::move(plan));
  }
  options.shard = shards[static_cast<size_t>(group->rank())];
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(source, options));
  std::unique_ptr<SideStream> side;
  MOERT_ASSIGN_OR_RETURN(const bool holds_all, HoldsAll(options));
  if (options.backend == BackendKind::kCuda && group->size() > 1 && holds_all) {
    MOERT_ASSIGN_OR_RETURN(side, MakeSideStream(options.device));
  }
  return std::make_unique<ExpertParallelImpl>(std::move(engine), plans, group, std::move(side),
                                              options.max_tokens_per_forward);
}

/// How a rank fared, for the others.
struct Verdict {
  int32_t code = 0;
  int32_t sums_beside = 0;  // ExpertParallelImpl::sums_beside
  char message[248] = {};
};

/// Every rank hears how all of them fared: OK, this rank's own error, or the first of the others'.
/// Sums are made beside the engine where all ranks can.
absl::Status AllReady(const absl::Status& mine, ExpertParallelImpl* rank, Collectives* group) {
  Verdict verdict;
  verdict.sums_beside = rank != nullptr && rank->sums_beside() ? 1 : 0;
  verdict.code = static_cast<int32_t>(mine.code());
  const absl::string_view message = mine.message();
  std::copy_n(message.begin(), std::min(message.size(), sizeof(verdict.message) - 1),
              verdict.message);
  std::vector<Verdict> all(static_cast<size_t>(group->size()));
  const absl::Status gathered =
      group->AllGather(&verdict, sizeof(verdict), all.data(), /*stream=*/nullptr);
  MOERT_RETURN_IF_ERROR(mine);
  MOERT_RETURN_IF_ERROR(gathered);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].sums_beside == 0) rank->SumInLine();
    if (all[r].code == 0) continue;
    all[r].message[sizeof(verdict.message) - 1] = 0;
    return absl::Status(static_cast<absl::StatusCode>(all[r].code),
                        fmt::format("rank {} gave up: {}", r, all[r].message));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertParallel>> ExpertParallel::Create(
    std::shared_ptr<const ExpertSource> source, EngineOptions options,
    absl::Span<const Shard> shards, std::shared_ptr<Collectives> group) try {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  if (group == nullptr) return absl::InvalidArgumentError("group: must not be null");
  absl::StatusOr<std::unique_ptr<ExpertParallelImpl>> rank =
      MakeRank(source, std::move(options), shards, group);
  const absl::Status ready =
      AllReady(rank.status(), rank.ok() ? rank->get() : nullptr, group.get());
  if (ready.ok()) return std::unique_ptr<ExpertParallel>(*std::move(rank));
  group->Abort(ready);
  return ready;
} catch (...) {
  const absl::Status status = ExceptionStatus("an expert-parallel group");
  if (group != nullptr) group->Abort(status);
  return status;
}

}  // namespace moert
