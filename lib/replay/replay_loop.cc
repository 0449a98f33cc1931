#include "replay/replay_loop.h"

#include "base/status_macros.h"

namespace moert {

absl::Status ReplayLoop::Run(TraceReader* trace) {
  MOERT_RETURN_IF_ERROR(trace->Rewind());
  while (true) {
    MOERT_ASSIGN_OR_RETURN(const TraceCall* call, trace->Next());
    if (call == nullptr) break;
    if (open_ && call->step != recorded_step_) {
      MOERT_RETURN_IF_ERROR(EndStep());
      if (options_.max_steps > 0 && steps_ == options_.max_steps) break;
    }
    if (!open_) MOERT_RETURN_IF_ERROR(BeginStep(*call));
    MOERT_RETURN_IF_ERROR(Call(*call));
  }
  return open_ ? EndStep() : absl::OkStatus();
}

absl::Status ReplayLoop::BeginStep(const TraceCall& first) {
  StepInfo info;
  info.phase = first.phase;
  info.rows = first.tokens;
  info.request_ids = first.request_ids;
  MOERT_RETURN_IF_ERROR(Begin(info, first));
  open_ = true;
  recorded_step_ = first.step;
  phase_ = first.phase;
  tokens_ = first.tokens;
  return absl::OkStatus();
}

absl::Status ReplayLoop::EndStep() {
  open_ = false;
  MOERT_ASSIGN_OR_RETURN(const int64_t ns, End());
  ++steps_;
  if (options_.progress) options_.progress(steps_);
  if (steps_ <= options_.warm_steps) {
    Forget();
    return absl::OkStatus();
  }
  (phase_ == Phase::kPrefill ? result_.prefill_ms : result_.decode_ms)
      .push_back(static_cast<double>(ns) * 1e-6);
  ++result_.steps;
  result_.tokens += tokens_;
  if (phase_ == Phase::kDecode) result_.decode_tokens += tokens_;
  return absl::OkStatus();
}

}  // namespace moert
