// Steps: from BeginStep through the layers to EndStep.
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "engine/engine_impl.h"
#include "fmt/format.h"
#include "model/check_layer.h"

namespace moert {

absl::StatusOr<StepId> EngineImpl::BeginStep(const StepInfo& info) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  if (info.rows < 1 || info.rows > options_.max_tokens_per_forward) {
    return InvalidArgument("step of {} rows: must be in [1, {}] (max_tokens_per_forward)",
                           info.rows, options_.max_tokens_per_forward);
  }
  if (!info.request_ids.empty() && static_cast<int64_t>(info.request_ids.size()) != info.rows) {
    return InvalidArgument("step of {} rows has {} request ids", info.rows,
                           info.request_ids.size());
  }
  if (!info.token_ids.empty() && static_cast<int64_t>(info.token_ids.size()) != info.rows) {
    return InvalidArgument("step of {} rows has {} token ids", info.rows, info.token_ids.size());
  }
  const TurnLock lock(&turns_, &mu_);
  StepState begun;
  begun.phase = info.phase;
  begun.rows = info.rows;
  begun.number = next_step_ - 1;
  begun.begin_ns = now_ns();
  begun.request_ids.assign(info.request_ids.begin(), info.request_ids.end());
  begun.token_ids.assign(info.token_ids.begin(), info.token_ids.end());
  begun.cancelled = std::make_shared<std::atomic<bool>>(false);
  begun.stream = info.stream;
  begun.predict_next = info.predict_next;
  const PolicyContext context = ContextOf(begun, 0);
  if (parts_->versions != nullptr) {
    parts_->versions->BeforeStep(context);
    AdvancePlan();
  } else {
    parts_->store->RefreshCapacity(context);
  }

  // From here on the step is open; a failure below closes it again.
  const StepId id = next_step_++;
  absl::Cleanup forget = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { ForgetStep(id); };
  {
    const MutexLock cancel_lock(&cancel_mu_);
    cancel_flags_.emplace(id, begun.cancelled);
  }
  StepState& step = steps_.emplace(id, std::move(begun)).first->second;
  step.epoch = parts_->store->OpenStep();
  absl::Cleanup close = [this, epoch = step.epoch]()
                            ABSL_NO_THREAD_SAFETY_ANALYSIS { parts_->store->CloseStep(epoch); };
  if (parts_->versions != nullptr) parts_->versions->AfterStepOpened(ContextOf(step, 0));
  DevicePath* const device = parts_->executor->device_path();
  const bool served = parts_->misses_served.ok() || parts_->runner->serves_fetches();
  if (served && parts_->executor->cpu_offload() != nullptr) {
    device->cache()->SetCpuCosts(parts_->scheduler->Costs());
  }
  MOERT_RETURN_IF_ERROR(device->OpenStep(parts_->store.get(), step.epoch,
                                         {step.request_ids, step.token_ids}, step.stream));
  std::move(close).Cancel();
  std::move(forget).Cancel();
  return id;
} catch (...) {
  return ExceptionStatus("begin of a step");
}

void EngineImpl::ForgetStep(StepId id) {
  steps_.erase(id);
  const MutexLock cancel_lock(&cancel_mu_);
  cancel_flags_.erase(id);
}

absl::StatusOr<EngineImpl::StepState*> EngineImpl::FindStep(StepId id) {
  const auto it = steps_.find(id);
  if (it != steps_.end()) return &it->second;
  if (id < 1 || id >= next_step_) return InvalidArgument("there is no step {}", id);
  return FailedPrecondition("step {} has ended", id);
}

absl::Status EngineImpl::Forward(StepId step, int layer, const MatrixView& hidden,
                                 const MutableMatrixView& out) {
  return Run(step, layer, hidden, nullptr, out);
}

absl::Status EngineImpl::ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                                       const RoutedInput& routing, const MutableMatrixView& out) {
  return Run(step, layer, hidden, &routing, out);
}

absl::Status EngineImpl::Run(StepId step_id, int layer, const MatrixView& hidden,
                             const RoutedInput* routed, const MutableMatrixView& out) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  absl::Status status;
  int64_t fallbacks = 0;
  bool lacks_scores = false;
  {
    const TurnLock lock(&turns_, &mu_);
    fallbacks = CollectFallbacks(*parts_);
    try {
      status = RunLocked(step_id, layer, hidden, routed, out);
    } catch (...) {  // out of memory, or thrown by a host's policy
      status = ExceptionStatus("layer call");
      if (const auto step = FindStep(step_id); step.ok()) (*step)->status.Update(status);
    }
    fallbacks = CollectFallbacks(*parts_) - fallbacks;
    lacks_scores = LacksScores();
  }
  if (options_.log == nullptr) return status;
  try {
    LogCall(layer, status, fallbacks);
    if (lacks_scores) LogLackingScores();
  } catch (...) {  // no memory for the log line
  }
  return status;
} catch (...) {
  return ExceptionStatus("layer call");
}

void EngineImpl::LogCall(int layer, const absl::Status& status, int64_t fallbacks) {
  if (!status.ok() && !absl::IsCancelled(status)) {
    Log(LogLevel::kError, fmt::format("layer {}: {}", layer, status.ToString()));
  }
  const std::string notice = blueprint_->backend->TakeNotice();
  if (!notice.empty()) Log(LogLevel::kWarning, notice);
  if (fallbacks > 0) {
    Log(LogLevel::kWarning,
        fmt::format("layer {}: {} invalid policy decisions were replaced by the default", layer,
                    fallbacks));
  }
}

bool EngineImpl::LacksScores() {
  // Waits for two whole steps, as a host may begin with calls that need no prediction.
  const int64_t predicted_layers = source_->model().num_layers() - 1;
  const int64_t missing = parts_->runner->stats().predictions_missing;
  if (said_lacking_ || missing == 0 || missing < 2 * predicted_layers) return false;
  said_lacking_ = true;
  return true;
}

void EngineImpl::LogLackingScores() const {
  Log(LogLevel::kWarning,
      fmt::format("strategy {} predicts by scores of the next layer's router, and the host's "
                  "routing has none: nothing is prefetched; give next_scores with each call",
                  strategy()));
}

absl::Status EngineImpl::RunLocked(StepId step_id, int layer, const MatrixView& hidden,
                                   const RoutedInput* routed, const MutableMatrixView& out) {
  MOERT_ASSIGN_OR_RETURN(StepState* const found, FindStep(step_id));
  StepState& step = *found;
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  LayerCall call{ContextOf(step, layer),
                 {layer, step.epoch, step.rows, hidden, out, step.stream, step.token_ids},
                 routed,
                 step.begin_ns,
                 step.cancelled.get(),
                 &step.predict_next};
  call.exec.shared = routed == nullptr || routed->shared_experts;
  MOERT_RETURN_IF_ERROR(
      parts_->executor->Check(call.exec, source_->model().layers[layer], routed != nullptr));
  if (step.cancelled->load(std::memory_order_relaxed)) {
    step.status.Update(absl::CancelledError("the step was cancelled"));
    return absl::CancelledError("the step was cancelled");
  }
  MOERT_RETURN_IF_ERROR(CheckRouting(layer, step.rows, routed));
  const bool on_host = routed != nullptr && routed->place == Place::kHost;
  MOERT_ASSIGN_OR_RETURN(call.exec.capturing, Capturing(step));
  if ((on_host || !graph_needs_.capturable) && call.exec.capturing) {
    return FailedPrecondition(
        "the stream is being captured: strategy {} needs the host in {}", strategy(),
        on_host ? "calls that bring their routing in host memory"
                : fmt::format("every layer call (graph_needs): {}", graph_needs_.obstacle));
  }
  if (!call.exec.capturing) MOERT_RETURN_IF_ERROR(TakeBack());
  ApplyHints();
  const absl::Status status = parts_->runner->Forward(call);
  step.status.Update(status);
  Publish();
  return status;
}

absl::StatusOr<bool> EngineImpl::Capturing(const StepState& step) const {
  return parts_->executor->device_path()->Capturing(step.stream);
}

absl::Status EngineImpl::CheckRouting(int layer, int64_t rows, const RoutedInput* routed) const {
  const RoutingSpec& routing = source_->model().layers[layer].routing;
  if (routed == nullptr) {
    if (!routing.external()) return absl::OkStatus();
    return FailedPrecondition("layer {}: its routing is the host's: give it (ForwardRouted)",
                              layer);
  }
  if (routed->place == Place::kHost) return absl::OkStatus();
  return CheckOnDevice(layer, rows,
                       {routed->ids.size(), routed->weights.size(), routed->used_ids.size(),
                        "used_ids", !routed->scores.empty()});
}

absl::Status EngineImpl::CheckOnDevice(int layer, int64_t rows, const OnDevice& given) const {
  if (!parts_->executor->device_path()->present()) {
    return InvalidArgument("layer {}: ids on a device; the {} backend takes them in host memory",
                           layer, BackendName(backend()));
  }
  const int top_k = source_->model().layers[layer].routing.top_k;
  const auto pairs = static_cast<size_t>(rows * top_k);
  if (given.ids != pairs || given.weights != pairs ||
      (given.written != 0 && given.written != pairs)) {
    return InvalidArgument(
        "layer {}: {} ids, {} weights, {} {} on the device; takes [{}, {}], {} or none", layer,
        given.ids, given.weights, given.written, given.written_name, rows, top_k,
        given.written_name);
  }
  if (given.scores) {
    return InvalidArgument("layer {}: scores beside ids on the device; give none", layer);
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::EndStep(StepId step) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  const TurnLock lock(&turns_, &mu_);
  MOERT_RETURN_IF_ERROR(FindStep(step).status());
  const auto it = steps_.find(step);
  absl::Status status = it->second.status;
  try {
    parts_->runner->TakeSelections();
    DevicePath* const device = parts_->executor->device_path();
    status.Update(device->CloseStep(it->second.stream));
    status.Update(device->cache()->TakeCpuFailure());
  } catch (...) {
    status.Update(ExceptionStatus("end of a step"));
  }
  parts_->leases->ReleaseStep(step);
  it->second.fetched.clear();
  parts_->store->CloseStep(it->second.epoch);
  const StepState ended = std::move(it->second);
  ForgetStep(step);
  try {
    AfterStep(ended);
  } catch (...) {  // out of memory, or thrown by a host's policy; the step has ended anyway
    status.Update(ExceptionStatus("end of a step"));
  }
  return status;
} catch (...) {
  return ExceptionStatus("end of a step");
}

void EngineImpl::AfterStep(const StepState& ended) {
  // Accounts for results of earlier steps while a device may still be busy with this one.
  parts_->runner->CollectLate(ContextOf(ended, 0));
  Publish();
  if (parts_->versions != nullptr) parts_->versions->AfterStep(ContextOf(ended, 0));
  AdvancePlan();
  if (options_.trace != nullptr) {
    options_.trace->OnSpan({TimelineTrack::kSteps,
                            ended.phase == Phase::kPrefill ? "prefill" : "decode", ended.begin_ns,
                            now_ns(), ended.number});
  }
}

absl::Status EngineImpl::CancelStep(StepId step) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  const MutexLock lock(&cancel_mu_);
  const auto it = cancel_flags_.find(step);
  if (it == cancel_flags_.end()) return FailedPrecondition("step {} is not open", step);
  it->second->store(true, std::memory_order_relaxed);
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("cancelling a step");
}

absl::Status EngineImpl::StepStatus(StepId step) try {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  const TurnLock lock(&turns_, &mu_);
  MOERT_ASSIGN_OR_RETURN(const StepState* found, FindStep(step));
  return found->status;
} catch (...) {
  return ExceptionStatus("status of a step");
}

}  // namespace moert
