#include <string>
#include <utility>

#include "options.h"

namespace moert::capi {
namespace {

static_assert(static_cast<int32_t>(TimelineTrack::kLink) == MOERT_TRACK_LINK);

template <typename T>
const T* DataOrNull(absl::Span<const T> span) {
  return span.empty() ? nullptr : span.data();
}

moert_call_times ToC(const CallTimes& times) {
  moert_call_times c{};
  c.struct_size = sizeof(c);
  c.step_begin_ns = times.step_begin_ns;
  c.begin_ns = times.begin_ns;
  c.end_ns = times.end_ns;
  c.route_ns = times.route_ns;
  c.multiply_ns = times.multiply_ns;
  c.stalled_ns = times.stalled_ns;
  return c;
}

class CTraceSink final : public TraceSink {
 public:
  CTraceSink(const moert_trace_sink& c, std::shared_ptr<const Ownership> ownership)
      : c_(c, std::move(ownership)) {}

  void OnCall(const TraceCall& call) override {
    if (c_->on_call == nullptr || call.tokens == 0) return;
    const moert_call_times times = ToC(call.times);
    moert_trace_call c{};
    c.struct_size = sizeof(c);
    c.step = call.step;
    c.layer = call.layer;
    c.phase = static_cast<moert_phase>(call.phase);
    c.tokens = call.tokens;
    const auto columns = [&](size_t size) { return static_cast<int64_t>(size) / call.tokens; };
    c.top_k = static_cast<int32_t>(columns(call.ids.size()));
    c.num_experts = static_cast<int32_t>(columns(call.scores.size()));
    c.request_ids = DataOrNull(call.request_ids);
    c.ids = call.ids.data();
    c.weights = call.weights.data();
    c.scores = DataOrNull(call.scores);
    c.next_scores = DataOrNull(call.next_scores);
    c.next_experts = columns(call.next_scores.size());
    c.times = &times;
    Call([&] { c_->on_call(c_->user_data, &c); });
  }

  void OnSpan(const TimelineSpan& span) override {
    if (c_->on_span == nullptr) return;
    Call([&] {
      const std::string name(span.name);
      moert_trace_span c{};
      c.struct_size = sizeof(c);
      c.name = name.c_str();
      c.track = static_cast<moert_track>(span.track);
      c.begin_ns = span.begin_ns;
      c.end_ns = span.end_ns;
      c.step = span.step;
      c.layer = span.layer;
      c.expert = span.expert;
      c.bytes = span.bytes;
      c_->on_span(c_->user_data, &c);
    });
  }

  bool wants_next_scores() const override { return c_->wants_next_scores != 0; }

 private:
  template <typename Body>
  static void Call(Body&& body) {
    try {
      body();
    } catch (...) {  // the contract forbids it; dying for it helps nobody
    }
  }

  const Owned<moert_trace_sink> c_;
};

}  // namespace

std::shared_ptr<TraceSink> AdaptTraceSink(const moert_trace_sink& sink,
                                          std::shared_ptr<const Ownership> ownership) {
  return std::make_shared<CTraceSink>(sink, std::move(ownership));
}

}  // namespace moert::capi
