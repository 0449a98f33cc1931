#include "moert/replay.h"

#include <algorithm>

#include "base/exception_status.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {
namespace {

class Replayer {
 public:
  Replayer(Engine* engine, const ReplayOptions& options) : engine_(engine), options_(options) {}
  ~Replayer() {
    if (open_) (void)engine_->EndStep(step_);  // a replay that failed leaves no step
  }

  absl::Status Call(const TraceCall& call) {
    if (!open_) MOERT_RETURN_IF_ERROR(BeginStep(call));
    RoutedInput input{call.ids, call.weights, call.scores, call.next_scores};
    input.idle_before_ns = options_.host_ns;
    if (options_.recorded_times) {
      input.times = &call.times;
      input.idle_before_ns =
          last_end_ns_ < 0 ? 0 : std::max<int64_t>(0, call.times.begin_ns - last_end_ns_);
      last_end_ns_ = call.times.end_ns;
    }
    const EngineStats before = engine_->stats();
    MOERT_RETURN_IF_ERROR(engine_->ForwardRouted(step_, call.layer, {}, input, {}));
    if (steps_ >= options_.warm_steps) Count(call.layer, StatsSince(engine_->stats(), before));
    return absl::OkStatus();
  }

  absl::Status EndStep() {
    if (!open_) return absl::OkStatus();
    open_ = false;
    MOERT_RETURN_IF_ERROR(engine_->EndStep(step_));
    const int64_t ns = engine_->now_ns() - begin_ns_ - outside_ns_;
    ++steps_;
    if (options_.progress) options_.progress(steps_);
    if (steps_ <= options_.warm_steps) {
      before_ = engine_->stats();
      return absl::OkStatus();
    }
    (phase_ == Phase::kPrefill ? result_.prefill_ms : result_.decode_ms)
        .push_back(static_cast<double>(ns) * 1e-6);
    ++result_.steps;
    result_.tokens += tokens_;
    return absl::OkStatus();
  }

  bool done() const { return options_.max_steps > 0 && steps_ == options_.max_steps; }
  bool open() const { return open_; }
  int64_t recorded_step() const { return recorded_step_; }
  ReplayResult Take() {
    result_.stats = StatsSince(engine_->stats(), before_);
    return std::move(result_);
  }

 private:
  void Count(int layer, const EngineStats& call) {
    std::vector<LayerRecall>& layers = result_.recall;
    if (layers.size() <= static_cast<size_t>(layer)) layers.resize(layer + 1);
    layers[layer].predicted += call.prefetch_predicted;
    layers[layer].recalled += call.prefetch_recalled;
    layers[layer].in_window += call.prefetch_recalled_in_window;
  }

  absl::Status BeginStep(const TraceCall& call) {
    begin_ns_ = engine_->now_ns();
    // What the host did between two steps passes on the clock and is no part of either.
    outside_ns_ = 0;
    if (options_.recorded_times && last_end_ns_ >= 0) {
      outside_ns_ = std::max<int64_t>(0, call.times.step_begin_ns - last_end_ns_);
    }
    StepInfo info;
    info.phase = call.phase;
    info.rows = call.tokens;
    info.request_ids = call.request_ids;
    MOERT_ASSIGN_OR_RETURN(step_, engine_->BeginStep(info));
    open_ = true;
    phase_ = call.phase;
    recorded_step_ = call.step;
    tokens_ = call.tokens;
    return absl::OkStatus();
  }

  Engine* engine_;
  const ReplayOptions& options_;
  ReplayResult result_;
  bool open_ = false;
  StepId step_ = 0;
  int64_t recorded_step_ = -1;
  Phase phase_ = Phase::kDecode;
  int64_t begin_ns_ = 0;
  int64_t outside_ns_ = 0;
  int64_t last_end_ns_ = -1;
  int64_t steps_ = 0;
  int64_t tokens_ = 0;
  EngineStats before_;
};

}  // namespace

absl::StatusOr<ReplayResult> Replay(TraceReader* trace, Engine* engine,
                                    const ReplayOptions& options) try {
  if (!(engine->model() == trace->header().model)) {
    return absl::InvalidArgumentError("replay: the engine's model is not the trace's");
  }
  MOERT_RETURN_IF_ERROR(trace->Rewind());
  Replayer replayer(engine, options);
  while (true) {
    MOERT_ASSIGN_OR_RETURN(const TraceCall* call, trace->Next());
    if (call == nullptr) break;
    if (replayer.open() && call->step != replayer.recorded_step()) {
      MOERT_RETURN_IF_ERROR(replayer.EndStep());
      if (replayer.done()) break;
    }
    MOERT_RETURN_IF_ERROR(replayer.Call(*call));
  }
  MOERT_RETURN_IF_ERROR(replayer.EndStep());
  return replayer.Take();
} catch (...) {
  return ExceptionStatus("replay");
}

}  // namespace moert
