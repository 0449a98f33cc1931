#include "moert/tools/replay.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/exception_status.h"
#include "base/status_macros.h"
#include "replay/replay_loop.h"

namespace moert {
namespace {

class Replayer final : public ReplayLoop {
 public:
  Replayer(Engine* engine, const ReplayOptions& options) : ReplayLoop(options), engine_(engine) {}
  ~Replayer() override {
    if (step_) (void)engine_->EndStep(*step_);  // a replay that failed leaves no step
  }

  ReplayResult Take() {
    result()->stats = StatsSince(engine_->stats(), before_);
    return std::move(*result());
  }

 private:
  absl::Status Begin(const StepInfo& info, const TraceCall& first) override {
    begin_ns_ = engine_->now_ns();
    // The host's work between two steps passes on the clock and is no part of either.
    outside_ns_ = 0;
    if (options().recorded_times && last_end_ns_ >= 0) {
      outside_ns_ = std::max<int64_t>(0, first.times.step_begin_ns - last_end_ns_);
    }
    MOERT_ASSIGN_OR_RETURN(step_, engine_->BeginStep(info));
    return absl::OkStatus();
  }

  absl::Status Call(const TraceCall& call) override {
    RoutedInput input{call.ids, call.weights, call.scores, call.next_scores};
    input.idle_before_ns = options().host_ns;
    if (options().recorded_times) {
      input.times = &call.times;
      input.idle_before_ns =
          last_end_ns_ < 0 ? 0 : std::max<int64_t>(0, call.times.begin_ns - last_end_ns_);
      last_end_ns_ = call.times.end_ns;
    }
    const EngineStats before = engine_->stats();
    MOERT_RETURN_IF_ERROR(engine_->ForwardRouted(*step_, call.layer, {}, input, {}));
    if (counts()) Count(call.layer, StatsSince(engine_->stats(), before));
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> End() override {
    MOERT_RETURN_IF_ERROR(engine_->EndStep(*std::exchange(step_, std::nullopt)));
    return engine_->now_ns() - begin_ns_ - outside_ns_;
  }

  void Forget() override { before_ = engine_->stats(); }

  void Count(int layer, const EngineStats& call) {
    std::vector<LayerRecall>& layers = result()->recall;
    if (layers.size() <= static_cast<size_t>(layer)) layers.resize(layer + 1);
    layers[layer].predicted += call.prefetch_predicted;
    layers[layer].recalled += call.prefetch_recalled;
    layers[layer].in_window += call.prefetch_recalled_in_window;
  }

  Engine* const engine_;
  std::optional<StepId> step_;  // the open one
  int64_t begin_ns_ = 0;
  int64_t outside_ns_ = 0;
  int64_t last_end_ns_ = -1;
  EngineStats before_;
};

}  // namespace

absl::StatusOr<ReplayResult> Replay(TraceReader* trace, Engine* engine,
                                    const ReplayOptions& options) try {
  if (!(engine->model() == trace->header().model)) {
    return absl::InvalidArgumentError("replay: the engine's model is not the trace's");
  }
  Replayer replayer(engine, options);
  MOERT_RETURN_IF_ERROR(replayer.Run(trace));
  return replayer.Take();
} catch (...) {
  return ExceptionStatus("replay");
}

}  // namespace moert
