// Steps: from BeginStep through the layers to EndStep.
#include <utility>

#include "base/fmt_absl.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "engine/engine_impl.h"
#include "fmt/format.h"

namespace moert {

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
  const std::lock_guard<std::mutex> lock(mu_);
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
    const absl::Status opened = device_->OpenStep(store_.get(), step.epoch, step.stream);
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

absl::StatusOr<EngineImpl::Step*> EngineImpl::FindStep(StepId id) {
  const auto it = steps_.find(id);
  if (it != steps_.end()) return &it->second;
  if (id < 1 || id >= next_step_) {
    return absl::InvalidArgumentError(fmt::format("there is no step {}", id));
  }
  return absl::FailedPreconditionError(fmt::format("step {} has ended", id));
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
    const std::lock_guard<std::mutex> lock(mu_);
    fallbacks = CollectStats().policy_fallbacks;
    status = RunLocked(step_id, layer, hidden, routed, out);
    fallbacks = CollectStats().policy_fallbacks - fallbacks;
  }
  if (!status.ok() && !absl::IsCancelled(status)) {
    Log(LogLevel::kError, fmt::format("layer {}: {}", layer, status.ToString()));
  }
  if (backend_ != nullptr && options_.log != nullptr) {
    if (const std::string notice = backend_->TakeNotice(); !notice.empty()) {
      Log(LogLevel::kWarning, notice);
    }
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
  MOERT_ASSIGN_OR_RETURN(Step* const found, FindStep(step_id));
  Step& step = *found;
  MOERT_RETURN_IF_ERROR(CheckViews(step, layer, hidden, out));
  if (step.cancelled->load(std::memory_order_relaxed)) {
    if (step.status.ok()) step.status = absl::CancelledError("the step was cancelled");
    return absl::CancelledError("the step was cancelled");
  }
  if (device_ != nullptr && (routed != nullptr || !graph_safe()) &&
      device_->Capturing(step.stream)) {
    return absl::FailedPreconditionError(fmt::format(
        "the stream is being captured: strategy {} needs the host in {}", strategy_.spec,
        routed != nullptr ? "calls that bring their routing" : "every layer call (graph_safe)"));
  }
  ApplyHints();
  const bool on_cpu = !options_.simulate && device_ == nullptr;
  if (on_cpu) WidenRows(hidden, x_.data());
  const absl::Status status = runner_->Forward(
      {ContextOf(step, layer),
       step.epoch,
       x_.data(),
       step.rows,
       routed,
       step.begin_ns,
       step.cancelled.get(),
       &step.predict_next,
       {layer, step.epoch, hidden, out, step.stream, strategy_.placement != nullptr}},
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
  const std::lock_guard<std::mutex> lock(mu_);
  MOERT_RETURN_IF_ERROR(FindStep(step).status());
  const auto it = steps_.find(step);
  absl::Status status = it->second.status;
  if (device_ != nullptr) {
    runner_->TakeSelections();
    status.Update(device_->CloseStep(it->second.stream));
  }
  leases_->ReleaseStep(step);
  store_->CloseStep(it->second.epoch);
  if (options_.trace != nullptr) {
    options_.trace->OnSpan({TimelineTrack::kSteps,
                            it->second.phase == Phase::kPrefill ? "prefill" : "decode",
                            it->second.begin_ns, clock_->now_ns(), it->second.number});
  }
  const Step ended = std::move(it->second);
  steps_.erase(it);
  {
    const std::lock_guard<std::mutex> cancel_lock(cancel_mu_);
    cancel_flags_.erase(step);
  }
  // Last: whatever a host's policy throws, the step has ended.
  if (device_ != nullptr) {
    // What has come of earlier steps, while the device is busy with this one.
    runner_->CollectLate(ContextOf(ended, 0));
    Publish();
  }
  if (manager_ != nullptr) manager_->AfterStep(ContextOf(ended, 0));
  return status;
}

absl::Status EngineImpl::CancelStep(StepId step) {
  const std::lock_guard<std::mutex> lock(cancel_mu_);
  const auto it = cancel_flags_.find(step);
  if (it == cancel_flags_.end()) {
    return absl::FailedPreconditionError(fmt::format("step {} is not open", step));
  }
  it->second->store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status EngineImpl::StepStatus(StepId step) {
  std::lock_guard<std::mutex> lock(mu_);
  MOERT_ASSIGN_OR_RETURN(const Step* found, FindStep(step));
  return found->status;
}

}  // namespace moert
