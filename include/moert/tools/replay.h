// Replay: runs a trace's routing through an engine that simulates (EngineOptions::simulate), with
// the same strategies, store and planners on the virtual clock: for machines and models that are
// not at hand.
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
  /// Charges the recorded times of calls (on the wall clock, by the machine that recorded them),
  /// and the recorded time between them, in place of the profile's costs. Waiting is never taken
  /// from the trace.
  bool recorded_times = false;
  /// Without recorded times: the time before every layer call, such as the host's attention takes.
  int64_t host_ns = 0;
  /// Steps to replay; 0: all.
  int64_t max_steps = 0;
  /// The number of first steps that fill caches and train predictors and are not counted.
  int64_t warm_steps = 0;
  /// Called after every step with the steps done; may be null.
  std::function<void(int64_t)> progress = {};
};

/// Recall over the experts that a layer needed when a prediction had been made for it.
struct LayerRecall {
  int64_t predicted = 0;  // the experts of such calls
  int64_t recalled = 0;   // of these, experts in the prediction
  int64_t in_window = 0;  // of the latter, experts present, in flight or admitted
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
