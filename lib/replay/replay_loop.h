// Goes through the calls of a trace, step by step; subclasses execute them.
#ifndef MOERT_LIB_REPLAY_REPLAY_LOOP_H_
#define MOERT_LIB_REPLAY_REPLAY_LOOP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/engine.h"
#include "moert/tools/replay.h"
#include "moert/tools/trace.h"

namespace moert {

class ReplayLoop {
 public:
  virtual ~ReplayLoop() = default;

  /// Replays `trace` from its beginning.
  absl::Status Run(TraceReader* trace);

 protected:
  /// `options` outlive the loop.
  explicit ReplayLoop(const ReplayOptions& options) : options_(options) {}

  /// Opens a step before its first call.
  virtual absl::Status Begin(const StepInfo& info, const TraceCall& first) = 0;
  virtual absl::Status Call(const TraceCall& call) = 0;
  /// Ends the step. Returns how long it took, in ns.
  virtual absl::StatusOr<int64_t> End() = 0;
  /// Called after each warm-up step: everything counted so far is to be discarded.
  virtual void Forget() = 0;

  const ReplayOptions& options() const { return options_; }
  /// Whether the current step counts.
  bool counts() const { return steps_ >= options_.warm_steps; }
  /// Times, steps and tokens of the steps that count.
  ReplayResult* result() { return &result_; }

 private:
  absl::Status BeginStep(const TraceCall& first);
  absl::Status EndStep();

  const ReplayOptions& options_;
  ReplayResult result_;
  bool open_ = false;
  int64_t recorded_step_ = -1;  // of the open step: its number in the trace, kind and tokens
  Phase phase_ = Phase::kDecode;
  int64_t tokens_ = 0;
  int64_t steps_ = 0;  // ended
};

}  // namespace moert

#endif  // MOERT_LIB_REPLAY_REPLAY_LOOP_H_
