// Traces: what an engine did, layer call by layer call.
//
// A sink sees every layer call's routing and every span of time. Two are built in: the routing
// trace (docs/reference/trace-format.md), which moert-sim replays through the same policies, and a
// timeline in Chrome's trace JSON, which Perfetto shows.
#ifndef MOERT_TOOLS_TRACE_H_
#define MOERT_TOOLS_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/policy.h"
#include "moert/source/expert_source.h"

namespace moert {

/// When a layer call happened and where its time went, engine's clock.
struct CallTimes {
  int64_t step_begin_ns = 0;  // when the step began
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t route_ns = 0;     // routing, prediction and planning
  int64_t multiply_ns = 0;  // all waves of the grouped GEMM
  int64_t stalled_ns = 0;   // waiting for experts

  /// Combination, publication and the like.
  int64_t other_ns() const { return end_ns - begin_ns - route_ns - multiply_ns - stalled_ns; }
};

/// One layer call. Spans are borrowed.
struct TraceCall {
  int64_t step = 0;
  Phase phase = Phase::kPrefill;
  int layer = 0;
  int64_t tokens = 0;
  absl::Span<const int64_t> request_ids = {};  // [T] or empty
  absl::Span<const int32_t> ids = {};          // [T, k], the experts used
  absl::Span<const float> weights = {};        // [T, k]
  absl::Span<const float> scores = {};         // [T, E] or empty
  absl::Span<const float> next_scores = {};    // [T, E'] of layer + 1 (0 after the last), or empty
  CallTimes times = {};
};

enum class TimelineTrack : int32_t { kSteps = 0, kLayers = 1, kStalls = 2, kLink = 3 };

/// Something that took time. Spans of one track may overlap on kLink only.
struct TimelineSpan {
  TimelineTrack track = TimelineTrack::kLayers;
  absl::string_view name = {};
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t step = -1;  // -1: does not apply, as below
  int layer = -1;
  int expert = -1;
  int64_t bytes = -1;
};

/// Called under the engine's lock, from one thread at a time; must not call the engine.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void OnCall(const TraceCall& call) = 0;
  virtual void OnSpan(const TimelineSpan& span) = 0;
  /// Whether calls must carry next_scores even where the strategy has no use for them: then the
  /// next layer's gate is run for the sink alone.
  virtual bool wants_next_scores() const { return true; }
};

/// One stored version of the experts: record bytes of layer l, expert e at bytes[l][e].
struct TraceVersion {
  std::string name = {};
  std::vector<std::vector<int64_t>> bytes = {};
};

/// Facts that a replay needs beside the calls.
struct TraceHeader {
  MoeModelSpec model = {};
  std::vector<TraceVersion> versions = {};
  std::string source = {};    // the model's name
  std::string strategy = {};  // the strategy under which it was recorded
  std::string clock = {};     // "wall" or "virtual"
  /// EngineOptions::max_tokens_per_forward: no call has more tokens, and a budget means the same
  /// in a replay that uses it.
  int64_t max_tokens = 1;
};
TraceHeader MakeTraceHeader(const ExpertSource& source, int64_t max_tokens);

/// A sink that writes a file. Errors are kept and returned by Close, which destruction also calls.
class TraceFile : public TraceSink {
 public:
  virtual absl::Status Close() = 0;
};
/// Behaviour if the file exists already. A link, a device or a pipe is always refused.
enum class Existing : int32_t { kRefuse = 0, kReplace = 1 };
/// The routing trace.
absl::StatusOr<std::unique_ptr<TraceFile>> CreateTrace(const std::string& path,
                                                       const TraceHeader& header,
                                                       Existing existing = Existing::kRefuse);
/// The timeline: Chrome trace JSON.
absl::StatusOr<std::unique_ptr<TraceFile>> CreateTimeline(const std::string& path,
                                                          Existing existing = Existing::kRefuse);
struct TracePaths {
  std::string routing = {}, timeline = {};  // empty: none
  Existing existing = Existing::kRefuse;
};
/// One or both. InvalidArgument where there is none.
absl::StatusOr<std::unique_ptr<TraceFile>> CreateTraceFiles(const TracePaths& paths,
                                                            const TraceHeader& header);

/// A stream of layer calls in the order they happened, from a file or generated. Not thread-safe.
class TraceReader {
 public:
  virtual ~TraceReader() = default;
  virtual const TraceHeader& header() const = 0;
  /// The next call, valid until the next Next; null at the end.
  virtual absl::StatusOr<const TraceCall*> Next() = 0;
  /// Back to the first call.
  virtual absl::Status Rewind() = 0;
};

/// Opens a routing trace. Calls are checked as they are read: a damaged file is an error that names
/// the call and the field.
absl::StatusOr<std::unique_ptr<TraceReader>> OpenTrace(const std::string& path);

/// Opens recorded decode routing of a trained model: a safetensors file with topk_ids U8 [S, T, L,
/// K], scores F16 [S, T, L, E] and predicted_scores F16 [S, T, L-1, E]. Sequences follow each
/// other, one token a step. `header` says what the file does not: the model and its sizes.
absl::StatusOr<std::unique_ptr<TraceReader>> OpenRecordedRouting(const std::string& path,
                                                                 const TraceHeader& header);

/// The experts of a trace as a source that has sizes and no bytes: for engines that simulate.
std::shared_ptr<const ExpertSource> MakeSizesSource(const TraceHeader& header);

}  // namespace moert

#endif  // MOERT_TOOLS_TRACE_H_
