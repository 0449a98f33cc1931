// Replay: a trace's routing run through an engine that simulates (EngineOptions::simulate): the
// same strategies, store and planners, on the virtual clock, for machines and models that are not
// here.
#ifndef MOERT_TOOLS_REPLAY_H_
#define MOERT_TOOLS_REPLAY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/engine.h"
#include "moert/tools/trace.h"

namespace moert {

struct ReplayOptions {
  /// Charge what calls took when they were recorded (on the wall clock, by the machine that
  /// recorded them), and the time between them, in place of the profile's costs. Waiting is never
  /// taken from the trace.
  bool recorded_times = false;
  /// Without recorded times: what passes before every layer call, as the host's attention does.
  int64_t host_ns = 0;
  /// Steps to replay; 0: all.
  int64_t max_steps = 0;
  /// So many first steps fill caches and train predictors, and are not counted.
  int64_t warm_steps = 0;
  /// Called after every step with the steps done; may be null.
  std::function<void(int64_t)> progress = {};
};

/// Recall over the experts that a layer needed when a prediction had been made for it.
struct LayerRecall {
  int64_t predicted = 0;  // how many those were
  int64_t recalled = 0;   // of them, in the prediction
  int64_t in_window = 0;  // and there, on their way or admitted
};

struct ReplayResult {
  int64_t steps = 0;  // counted
  int64_t tokens = 0;
  int64_t decode_tokens = 0;            // of those, in decode steps
  EngineStats stats = {};               // of the counted steps
  std::vector<double> prefill_ms = {};  // by step, engine's clock
  std::vector<double> decode_ms = {};
  std::vector<LayerRecall> recall = {};  // by layer
};

/// Runs the trace from its beginning. The engine must have the trace's model and allow steps of
/// TraceHeader::max_tokens.
absl::StatusOr<ReplayResult> Replay(TraceReader* trace, Engine* engine,
                                    const ReplayOptions& options);

}  // namespace moert

#endif  // MOERT_TOOLS_REPLAY_H_
