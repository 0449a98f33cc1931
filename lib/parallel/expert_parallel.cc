#include "moert/parallel/expert_parallel.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "model/check_layer.h"
#include "parallel/expert_parallel_impl.h"

namespace moert {

ExpertParallelImpl::~ExpertParallelImpl() {
  if (fence_ != nullptr && !steps_.empty()) fence_->Miss();  // open steps will not pass the fence
  try {
    AwaitSteps().IgnoreError();  // steps use the memory that is freed here
  } catch (...) {                // no memory for the message of a lost device
  }
}

absl::Status ExpertParallelImpl::CheckTotal(int64_t rows) const {
  if (rows <= max_rows_) return absl::OkStatus();
  return InvalidArgument(
      "a step of {} rows of all ranks: one rank may be asked for all of them, and takes {} "
      "(max_tokens_per_forward)",
      rows, max_rows_);
}

absl::Status ExpertParallelImpl::CheckRows(const StepInfo& info, Step* step) {
  const bool apart = step->placement == TokenPlacement::kPerRank;
  if (on_device()) {
    // The host does not wait for other ranks here: callers promise equally many rows on every rank.
    return Split(apart ? info.rows * group_->size() : info.rows, true, step);
  }
  const int64_t mine[2] = {info.rows, static_cast<int64_t>(step->placement)};
  std::vector<int64_t> all(2 * static_cast<size_t>(group_->size()));
  MOERT_RETURN_IF_ERROR(
      Timed([&] { return group_->AllGather(mine, sizeof(mine), all.data(), nullptr); }));
  int64_t total = 0;
  bool every_rank_has_rows = true;
  for (size_t r = 0; 2 * r < all.size(); ++r) {
    total += all[2 * r];
    every_rank_has_rows = every_rank_has_rows && all[2 * r] > 0;
    if ((apart || all[2 * r] == info.rows) && all[2 * r + 1] == mine[1]) continue;
    return InvalidArgument(
        "ranks disagree about a step: rank {} has {} {} rows, rank {} {} {} rows", group_->rank(),
        info.rows, mine[1] == 0 ? "replicated" : "own", r, all[2 * r],
        all[2 * r + 1] == 0 ? "replicated" : "own");
  }
  return Split(apart ? total : info.rows, every_rank_has_rows, step);
}

absl::StatusOr<StepId> ExpertParallelImpl::BeginStep(const StepInfo& info,
                                                     TokenPlacement placement) try {
  Step step{placement, info.rows, info.rows, info.stream, StepSplit::kExperts};
  if (on_device() && info.stream == nullptr) {
    return OrAbort(absl::InvalidArgumentError("stream: null; a group on a device needs one"));
  }
  MOERT_RETURN_IF_ERROR(CheckRows(info, &step));
  if (placement == TokenPlacement::kPerRank && info.rows < 0) {
    return OrAbort(absl::InvalidArgumentError("rows: must not be negative"));
  }
  if (fence_ != nullptr) MOERT_RETURN_IF_ERROR(OrAbort(fence_->Enter(info.stream)));
  const absl::StatusOr<StepId> id = engine_->BeginStep(EngineInfo(info, step));
  if (!id.ok()) return OrAbort(id.status());
  stats_.split = step.split;
  absl::Cleanup end = [&] { engine_->EndStep(*id).IgnoreError(); };
  steps_[*id] = step;
  std::move(end).Cancel();
  return *id;
} catch (...) {
  return OrAbort(ExceptionStatus("beginning a step"));
}

absl::Status ExpertParallelImpl::EndStep(StepId id) try {
  const auto found = steps_.find(id);
  if (found == steps_.end()) return engine_->EndStep(id);  // returns the error
  absl::Status status = engine_->EndStep(id);
  if (fence_ != nullptr) status.Update(fence_->Pass(found->second.stream));
  steps_.erase(found);
  return status;
} catch (...) {
  return OrAbort(ExceptionStatus("ending a step"));
}

absl::Status ExpertParallelImpl::CheckCall(const Step& step, int layer, const MatrixView& hidden,
                                           const RoutedInput* routing,
                                           const MutableMatrixView& out) const {
  const MoeModelSpec& model = engine_->model();
  MOERT_RETURN_IF_ERROR(CheckLayer(model, layer));
  const MoeLayerSpec& spec = model.layers[layer];
  if (hidden.rows != step.rows || out.rows != step.rows || hidden.cols != spec.hidden ||
      out.cols != spec.hidden) {
    return InvalidArgument(
        "layer {}: hidden [{}, {}], out [{}, {}]; this rank's step takes [{}, {}]", layer,
        hidden.rows, hidden.cols, out.rows, out.cols, step.rows, spec.hidden);
  }
  // A placed group needs the routing of replicated tokens too.
  if (step.placement == TokenPlacement::kReplicated && placed_ == nullptr) return absl::OkStatus();
  return CheckRouting(step, layer, routing);
}

absl::Status ExpertParallelImpl::CheckRouting(const Step& step, int layer,
                                              const RoutedInput* routing) const {
  if (routing == nullptr) {
    return InvalidArgument(
        "layer {}: {} bring their routing", layer,
        step.placement == TokenPlacement::kPerRank ? "own tokens" : "placed groups");
  }
  const MoeLayerSpec& spec = engine_->model().layers[layer];
  const auto pairs = static_cast<size_t>(step.rows * spec.routing.top_k);
  const Place place = on_device() ? Place::kDevice : Place::kHost;
  if (routing->place != place || routing->ids.size() != pairs || routing->weights.size() != pairs) {
    return InvalidArgument("layer {}: {} ids, {} weights; this rank's step takes [{}, {}] {}",
                           layer, routing->ids.size(), routing->weights.size(), step.rows,
                           spec.routing.top_k,
                           place == Place::kHost ? "in host memory" : "on the device");
  }
  if (!routing->used_ids.empty()) {
    return InvalidArgument("layer {}: used_ids: they are not brought back from other ranks", layer);
  }
  if (place == Place::kDevice) return absl::OkStatus();
  for (const int32_t e : routing->ids) {
    if (e >= -1 && e < spec.num_experts) continue;
    return InvalidArgument("layer {}: expert {} does not exist; legal are [0, {}) and -1: none",
                           layer, e, spec.num_experts);
  }
  return absl::OkStatus();
}

absl::Status ExpertParallelImpl::Forward(StepId id, int layer, const MatrixView& hidden,
                                         const RoutedInput* routing,
                                         const MutableMatrixView& out) try {
  const auto found = steps_.find(id);
  if (found == steps_.end()) return OrAbort(FailedPrecondition("step {} is not open", id));
  const Step& step = found->second;
  MOERT_RETURN_IF_ERROR(OrAbort(CheckCall(step, layer, hidden, routing, out)));
  if (step.split == StepSplit::kNone) {
    return OrAbort(engine_->ForwardRouted(id, layer, hidden, *routing, out));
  }
  if (step.split == StepSplit::kRows) {
    return OrAbort(Blocks(id, step, layer, hidden, *routing, out));
  }
  if (step.placement == TokenPlacement::kReplicated) {
    return OrAbort(Replicated(id, step, layer, hidden, routing, out));
  }
  return OrAbort(on_device() ? OwnOnDevice(id, step, layer, hidden, *routing, out)
                             : Own(id, step, layer, hidden, *routing, out));
} catch (...) {
  return OrAbort(ExceptionStatus("a layer call"));
}

absl::Status ExpertParallelImpl::Replicated(StepId id, const Step& step, int layer,
                                            const MatrixView& hidden, const RoutedInput* routing,
                                            const MutableMatrixView& out) {
  const bool in_place = !step.narrow && out.dtype == DType::kF32 && out.row_stride == out.cols;
  RoutedInput own;  // of a placed group
  if (placed_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(own, placed_->Keep(layer, step.rows, *routing, step.stream));
    own.shared_experts = group_->rank() == 0;
    routing = &own;
  }
  MutableMatrixView sum = out;
  if (!in_place) {
    MOERT_ASSIGN_OR_RETURN(sum, Scratch(step, out.cols));
  }
  MOERT_RETURN_IF_ERROR(routing == nullptr
                            ? engine_->Forward(id, layer, hidden, sum)
                            : engine_->ForwardRouted(id, layer, hidden, *routing, sum));
  return AddUp(step, sum, out);
}

/// The memory in which a step's rows are summed if not in the caller's output.
absl::StatusOr<MutableMatrixView> ExpertParallelImpl::Scratch(const Step& step, int64_t cols) {
  if (on_device()) return rows_->Part(step.engine_rows, cols, step.narrow);
  y_.resize(step.rows * cols);
  return MutableMatrixView{y_.data(), DType::kF32, step.rows, cols, cols};
}

/// Writes the sum of `part` over the ranks into out.
absl::Status ExpertParallelImpl::AddUp(const Step& step, const MutableMatrixView& part,
                                       const MutableMatrixView& out) {
  const int64_t count = part.rows * part.cols;
  stats_.all_reduced_bytes += count * DTypeBytes(part.dtype);
  if (step.narrow) return Timed([&] { return rows_->AddAll(part, step.stream, out); });
  auto* const data = static_cast<float*>(part.data);
  MOERT_RETURN_IF_ERROR(Timed([&] { return group_->AllReduce(data, count, step.stream); }));
  if (part.data == out.data) return absl::OkStatus();
  if (on_device()) return rows_->Copy(part, step.stream, out);
  NarrowRows(data, out);
  return absl::OkStatus();
}

absl::Status ExpertParallelImpl::OwnOnDevice(StepId id, const Step& step, int layer,
                                             const MatrixView& hidden, const RoutedInput& routing,
                                             const MutableMatrixView& out) {
  if (group_->size() == 1 && placed_ == nullptr) {
    return engine_->ForwardRouted(id, layer, hidden, routing, out);
  }
  MatrixView all;
  RoutedInput all_routing;
  MOERT_RETURN_IF_ERROR(
      Timed([&] { return rows_->Gather(hidden, routing, step.stream, &all, &all_routing); }));
  if (placed_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(all_routing,
                           placed_->Keep(layer, step.engine_rows, all_routing, step.stream));
    all_routing.shared_experts = group_->rank() == 0;
  }
  MOERT_ASSIGN_OR_RETURN(const MutableMatrixView part, Scratch(step, out.cols));
  MOERT_RETURN_IF_ERROR(engine_->ForwardRouted(id, layer, all, all_routing, part));
  const int64_t others = step.engine_rows - step.rows;
  stats_.sent_rows += step.rows * (group_->size() - 1);
  stats_.received_rows += others;
  return Timed([&] { return rows_->AddOwn(part, step.stream, out); });
}

absl::Status ExpertParallelImpl::Own(StepId id, const Step& step, int layer,
                                     const MatrixView& hidden, const RoutedInput& routing,
                                     const MutableMatrixView& out) {
  x_.resize(step.rows * hidden.cols);
  if (step.rows > 0) WidenRows(hidden, x_.data());
  ExchangedRows received;
  MOERT_RETURN_IF_ERROR(Timed([&] {
    return exchange_.Dispatch(layer, step.rows, x_.data(), routing.ids, routing.weights, &received);
  }));
  const int64_t k = engine_->model().layers[layer].routing.top_k;
  MOERT_RETURN_IF_ERROR(Multiply(id, step, layer, k, &received));
  MOERT_RETURN_IF_ERROR(Timed([&] { return exchange_.Combine(y_.data(), x_.data()); }));
  if (step.rows > 0) NarrowRows(x_.data(), out);
  return absl::OkStatus();
}

/// Multiplies `rows` into y_. Calls of a step have as many rows as all ranks together, so missing
/// rows are added with no expert.
absl::Status ExpertParallelImpl::Multiply(StepId id, const Step& step, int layer, int64_t k,
                                          ExchangedRows* rows) {
  const int64_t cols = engine_->model().layers[layer].hidden;
  if (placed_ != nullptr) placed_->Count(layer, rows->ids);
  rows->hidden.resize(step.engine_rows * cols);
  rows->ids.resize(step.engine_rows * k, -1);
  rows->weights.resize(step.engine_rows * k);
  y_.resize(rows->hidden.size());
  RoutedInput routing;
  routing.ids = rows->ids;
  routing.weights = rows->weights;
  routing.shared_experts = placed_ == nullptr || group_->rank() == 0;
  return engine_->ForwardRouted(id, layer,
                                {rows->hidden.data(), DType::kF32, step.engine_rows, cols, cols},
                                routing, {y_.data(), DType::kF32, step.engine_rows, cols, cols});
}

}  // namespace moert
