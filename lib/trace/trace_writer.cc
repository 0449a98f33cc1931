// Writes the routing trace.
#include <cstring>

#include "base/exception_status.h"
#include "base/hash64.h"
#include "base/json_writer.h"
#include "base/status_macros.h"
#include "model/model_json.h"
#include "moert/tools/trace.h"
#include "trace/stdio_file.h"
#include "trace/trace_format.h"

namespace moert {
namespace {

/// One number per layer whose experts have equal sizes, else one per expert.
void WriteBytes(const std::vector<std::vector<int64_t>>& bytes, JsonWriter* out) {
  out->BeginArray();
  for (const std::vector<int64_t>& layer : bytes) {
    bool equal = !layer.empty();
    for (const int64_t b : layer) equal = equal && b == layer.front();
    if (equal) {
      out->Int(layer.front());
    } else {
      out->Values(layer);
    }
  }
  out->EndArray();
}

std::string HeaderText(const TraceHeader& header) {
  JsonWriter out;
  out.BeginObject().Field("clock", header.clock).Field("format", "moert-trace");
  out.Field("library", MOERT_VERSION).Field("max_tokens", header.max_tokens).Key("model");
  WriteModel(header.model, &out);
  out.Field("source", header.source).Field("strategy", header.strategy);
  out.Key("versions").BeginArray();
  for (const TraceVersion& v : header.versions) {
    out.BeginObject().Key("bytes");
    WriteBytes(v.bytes, &out);
    out.Field("name", v.name).EndObject();
  }
  out.EndArray().EndObject();
  std::string text = out.Take();
  while ((trace::kFileHeaderBytes + text.size()) % 8 != 0) text += ' ';
  return text;
}

class TraceWriter final : public TraceFile {
 public:
  TraceWriter(const std::string& path, Existing existing) : file_(path, existing) {}

  absl::Status WriteHeader(const TraceHeader& header) {
    const std::string text = HeaderText(header);
    buffer_.assign(trace::kMagic, sizeof(trace::kMagic));
    Put<uint32_t>(trace::kVersion);
    Put<uint32_t>(static_cast<uint32_t>(text.size()));
    buffer_ += text;
    PutChecksum();
    file_.Write(buffer_);
    return file_.status();
  }

  void OnCall(const TraceCall& call) override {
    buffer_.clear();
    const uint8_t flags = (call.scores.empty() ? 0 : trace::kHasScores) |
                          (call.next_scores.empty() ? 0 : trace::kHasNextScores) |
                          (call.request_ids.empty() ? 0 : trace::kHasRequestIds);
    Put<uint64_t>(0);  // bytes, below
    Put<uint8_t>(static_cast<uint8_t>(call.phase));
    Put<uint8_t>(flags);
    Put<uint16_t>(static_cast<uint16_t>(call.layer));
    Put<uint32_t>(static_cast<uint32_t>(call.tokens));
    Put<int64_t>(call.step);
    const CallTimes& t = call.times;
    for (const int64_t ns :
         {t.step_begin_ns, t.begin_ns, t.end_ns, t.route_ns, t.multiply_ns, t.stalled_ns}) {
      Put<int64_t>(ns);
    }
    for (const int64_t id : call.request_ids) Put<int64_t>(id);
    for (const int32_t id : call.ids) Put<uint16_t>(static_cast<uint16_t>(id));  // -1: kNotHere
    for (const auto values : {call.weights, call.scores, call.next_scores}) {
      for (const float v : values) Put<float>(v);
    }
    const uint64_t bytes = buffer_.size() + trace::kChecksumBytes;
    std::memcpy(buffer_.data(), &bytes, sizeof(bytes));
    PutChecksum();
    file_.Write(buffer_);
  }

  void OnSpan(const TimelineSpan&) override {}
  absl::Status Close() override { return file_.Close(); }

 private:
  template <typename T>
  void Put(T value) {  // little-endian, as every machine the library runs on
    buffer_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  /// The checksum is of all that the buffer holds.
  void PutChecksum() {
    Hasher64 hasher;
    hasher.Add(buffer_);
    Put<uint64_t>(hasher.Finish());
  }

  StdioFile file_;
  std::string buffer_;
};

class BothFiles final : public TraceFile {
 public:
  BothFiles(std::unique_ptr<TraceFile> trace, std::unique_ptr<TraceFile> timeline)
      : trace_(std::move(trace)), timeline_(std::move(timeline)) {}
  void OnCall(const TraceCall& call) override { trace_->OnCall(call); }
  void OnSpan(const TimelineSpan& span) override { timeline_->OnSpan(span); }
  absl::Status Close() override {
    const absl::Status trace = trace_->Close();
    const absl::Status timeline = timeline_->Close();
    return trace.ok() ? timeline : trace;
  }

 private:
  std::unique_ptr<TraceFile> trace_, timeline_;
};

}  // namespace

TraceHeader MakeTraceHeader(const ExpertSource& source, int64_t max_tokens) {
  TraceHeader header;
  header.max_tokens = max_tokens;
  header.model = source.model();
  header.source = source.name();
  for (int v = 0; v < source.num_versions(); ++v) {
    TraceVersion version;
    version.name = std::string(source.version_name(v));
    for (int l = 0; l < header.model.num_layers(); ++l) {
      std::vector<int64_t>& bytes = version.bytes.emplace_back();
      for (int e = 0; e < header.model.layers[l].num_experts; ++e) {
        bytes.push_back(source.layout(l, e, v).bytes);
      }
    }
    header.versions.push_back(std::move(version));
  }
  return header;
}

absl::StatusOr<std::unique_ptr<TraceFile>> CreateTrace(const std::string& path,
                                                       const TraceHeader& header,
                                                       Existing existing) try {
  auto writer = std::make_unique<TraceWriter>(path, existing);
  MOERT_RETURN_IF_ERROR(writer->WriteHeader(header));
  return writer;
} catch (...) {
  return ExceptionStatus("creating a trace");
}

absl::StatusOr<std::unique_ptr<TraceFile>> CreateTraceFiles(const TracePaths& paths,
                                                            const TraceHeader& header) try {
  if (paths.routing.empty() && paths.timeline.empty()) {
    return absl::InvalidArgumentError("trace: neither a routing trace nor a timeline has a path");
  }
  if (paths.routing.empty()) return CreateTimeline(paths.timeline, paths.existing);
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<TraceFile> trace,
                         CreateTrace(paths.routing, header, paths.existing));
  if (paths.timeline.empty()) return trace;
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<TraceFile> timeline,
                         CreateTimeline(paths.timeline, paths.existing));
  return std::make_unique<BothFiles>(std::move(trace), std::move(timeline));
} catch (...) {
  return ExceptionStatus("creating a trace");
}

}  // namespace moert
