// Writes the timeline as Chrome trace JSON, event by event.
#include <vector>

#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "moert/tools/trace.h"
#include "trace/stdio_file.h"

namespace moert {
namespace {

constexpr const char* kTrackNames[] = {"steps", "layers", "stalls", "link"};
constexpr int kLinkTrack = static_cast<int>(TimelineTrack::kLink);

class Timeline final : public TraceFile {
 public:
  Timeline(const std::string& path, Existing existing) : file_(path, existing) {
    file_.Write(R"({"displayTimeUnit":"ms","traceEvents":[)"
                R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"moert"}})");
    for (int track = 0; track < kLinkTrack; ++track) NameTrack(track, kTrackNames[track]);
  }
  ~Timeline() override {
    try {
      (void)Close();
    } catch (...) {  // no memory for the message of a failed write
    }
  }

  const absl::Status& status() const { return file_.status(); }

  void OnCall(const TraceCall&) override {}

  void OnSpan(const TimelineSpan& span) override {
    int track = static_cast<int>(span.track);
    if (track == kLinkTrack) track += Lane(span);
    text_.clear();
    const auto out = std::back_inserter(text_);
    fmt::format_to(out, R"(,
{{"ph":"X","pid":1,"tid":{},"name":"{}{}","ts":{:.3f},"dur":{:.3f},"args":{{)",
                   track, span.name,
                   span.expert < 0 ? "" : fmt::format(" {}.{}", span.layer, span.expert),
                   static_cast<double>(span.begin_ns) * 1e-3,
                   static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
    const char* separator = "";
    const auto argument = [&](const char* name, int64_t value) {
      if (value < 0) return;
      fmt::format_to(out, R"({}"{}":{})", separator, name, value);
      separator = ",";
    };
    argument("step", span.step);
    argument("layer", span.layer);
    argument("expert", span.expert);
    argument("bytes", span.bytes);
    text_ += "}}";
    file_.Write(text_);
  }

  absl::Status Close() override {
    if (open_) file_.Write("\n]}\n");
    open_ = false;
    return file_.Close();
  }

 private:
  void NameTrack(int track, const std::string& name) {
    file_.Write(fmt::format(
        R"(,
{{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
        track, name));
  }

  /// Transfers overlap if several threads carry them: each takes the first free lane.
  int Lane(const TimelineSpan& span) {
    size_t lane = 0;
    while (lane < lane_ends_.size() && lane_ends_[lane] > span.begin_ns) ++lane;
    if (lane == lane_ends_.size()) {
      lane_ends_.push_back(0);
      NameTrack(kLinkTrack + static_cast<int>(lane), fmt::format("link {}", lane));
    }
    lane_ends_[lane] = span.end_ns;
    return static_cast<int>(lane);
  }

  StdioFile file_;
  std::vector<int64_t> lane_ends_;
  std::string text_;
  bool open_ = true;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> CreateTimeline(const std::string& path,
                                                          Existing existing) try {
  auto timeline = std::make_unique<Timeline>(path, existing);
  MOERT_RETURN_IF_ERROR(timeline->status());
  return timeline;
} catch (...) {
  return ExceptionStatus("creating a timeline");
}

}  // namespace moert
