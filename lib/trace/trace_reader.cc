// Reads the routing trace. The file is hostile input: every size is computed with checked
// arithmetic from values that were checked before, and compared with the file's own statements and
// size.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <new>

#include "base/bf16.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/hash64.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "model/config_fields.h"
#include "model/model_json.h"
#include "moert/tools/env.h"
#include "moert/tools/trace.h"
#include "trace/trace_format.h"

namespace moert {
namespace {

constexpr int64_t kMaxRecordBytes = int64_t{1} << 40;
constexpr int64_t kMaxSizes = 1'000'000;  // versions x experts: a short header can ask for many
constexpr int64_t kChunkBytes = int64_t{4} << 20;

absl::StatusOr<TraceVersion> ParseVersion(JsonValue object, const MoeModelSpec& model,
                                          const std::string& source) {
  if (!object.is_object()) return absl::InvalidArgumentError(source + ": not an object");
  ConfigFields fields(object, source);
  TraceVersion version;
  version.name = fields.String("name");
  MOERT_RETURN_IF_ERROR(fields.status());
  const auto bytes = fields.Find("bytes");
  if (!bytes || !bytes->is_array() || bytes->size() != model.layers.size()) {
    return InvalidArgument("{}: bytes must be a list of {} layers", source, model.layers.size());
  }
  const auto read = [](JsonValue value) {
    const int64_t b = value.AsInt().value_or(-1);
    return b >= 1 && b <= kMaxRecordBytes ? b : -1;
  };
  for (const JsonValue layer : bytes->elements()) {
    const size_t l = version.bytes.size();
    const auto experts = static_cast<size_t>(model.layers[l].num_experts);
    std::vector<int64_t>& row = version.bytes.emplace_back(experts, read(layer));
    if (layer.is_array() && layer.size() == experts) {
      size_t e = 0;
      for (const JsonValue size : layer.elements()) row[e++] = read(size);
    }
    for (const int64_t b : row) {
      if (b > 0) continue;
      return InvalidArgument("{}: bytes of layer {} must be a size or {} sizes in [1, {}]", source,
                             l, experts, kMaxRecordBytes);
    }
  }
  return version;
}

absl::StatusOr<TraceHeader> ParseHeader(std::string text, const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(std::move(text), path));
  ConfigFields fields(document.root(), path);
  TraceHeader header;
  if (fields.String("format") != "moert-trace") fields.Fail("format", "must be moert-trace");
  header.source = fields.String("source", "");
  header.strategy = fields.String("strategy", "");
  header.clock = fields.String("clock", "");
  header.max_tokens = fields.Int("max_tokens", 1, trace::kMaxTokens);
  MOERT_RETURN_IF_ERROR(fields.status());
  const auto model = fields.Find("model");
  if (!model || !model->is_object()) {
    return absl::InvalidArgumentError(path + ": model is not an object");
  }
  MOERT_ASSIGN_OR_RETURN(header.model, ModelFromJson(*model, path + ": model"));
  for (const MoeLayerSpec& layer : header.model.layers) {
    if (layer.num_experts <= UINT16_MAX + 1) continue;
    return InvalidArgument("{}: {} experts in a layer, a trace holds 65536", path,
                           layer.num_experts);
  }
  const auto versions = fields.Find("versions");
  const int64_t count =
      versions && versions->is_array() ? static_cast<int64_t>(versions->size()) : 0;
  if (count < 1 || count > 64) {
    return absl::InvalidArgumentError(path + ": versions must be a list of 1 to 64");
  }
  if (count * header.model.total_experts() > kMaxSizes) {
    return InvalidArgument("{}: {} versions of {} experts, the limit is {}", path, count,
                           header.model.total_experts(), kMaxSizes);
  }
  for (const JsonValue entry : versions->elements()) {
    MOERT_ASSIGN_OR_RETURN(TraceVersion version, ParseVersion(entry, header.model,
                                                              fmt::format("{}: version {}", path,
                                                                          header.versions.size())));
    header.versions.push_back(std::move(version));
  }
  return header;
}

template <typename T>
T Load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

class Reader final : public TraceReader {
 public:
  explicit Reader(std::unique_ptr<RandomAccessFile> file) : file_(std::move(file)) {}

  absl::Status Open() {
    std::byte fixed[trace::kFileHeaderBytes];
    if (file_->size() < static_cast<int64_t>(sizeof(fixed))) return Bad("too short for a trace");
    MOERT_RETURN_IF_ERROR(file_->Read(0, absl::MakeSpan(fixed)));
    if (std::memcmp(fixed, trace::kMagic, sizeof(trace::kMagic)) != 0) {
      return Bad("not a routing trace (docs/reference/trace-format.md)");
    }
    const uint32_t version = Load<uint32_t>(fixed + 8);
    if (version < 1 || version > trace::kVersion) {
      return Bad(fmt::format("version {} of the format, this build reads 1 to {}", version,
                             trace::kVersion));
    }
    checksum_bytes_ = version == 1 ? 0 : static_cast<int64_t>(trace::kChecksumBytes);
    score_bytes_ = version < 3 ? sizeof(uint16_t) : sizeof(float);
    const int64_t length = Load<uint32_t>(fixed + 12);
    if (length > trace::kMaxHeaderBytes ||
        length > file_->size() - static_cast<int64_t>(sizeof(fixed)) - checksum_bytes_) {
      return Bad(fmt::format("header of {} bytes in a file of {}", length, file_->size()));
    }
    std::string text(static_cast<size_t>(length), '\0');
    MOERT_RETURN_IF_ERROR(file_->Read(
        sizeof(fixed), absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
    Hasher64 hasher;
    hasher.Add(absl::MakeConstSpan(fixed));
    hasher.Add(text);
    MOERT_ASSIGN_OR_RETURN(header_, ParseHeader(std::move(text), file_->path()));
    offset_ = static_cast<int64_t>(sizeof(fixed)) + length;
    if (checksum_bytes_ > 0) {
      MOERT_ASSIGN_OR_RETURN(const std::byte* sum, Fetch(checksum_bytes_));
      if (Load<uint64_t>(sum) != hasher.Finish()) return Damaged("the header");
    }
    first_call_ = offset_ + checksum_bytes_;
    return Rewind();
  }

  const TraceHeader& header() const override { return header_; }

  absl::Status Rewind() override {
    offset_ = first_call_;
    calls_ = 0;
    chunk_begin_ = chunk_end_ = 0;
    return absl::OkStatus();
  }

  absl::StatusOr<const TraceCall*> Next() override {
    if (offset_ == file_->size()) return nullptr;
    try {
      MOERT_RETURN_IF_ERROR(ReadCall());
    } catch (const std::bad_alloc&) {
      return OutOfMemory(file_->path());
    }
    ++calls_;
    return &call_;
  }

 private:
  absl::Status Bad(const std::string& what) const {
    return InvalidArgument("{}: {}", file_->path(), what);
  }
  absl::Status Damaged(const std::string& what) const {
    return DataLoss("{}: {} is damaged: its checksum differs", file_->path(), what);
  }
  absl::Status BadCall(const std::string& what) const {
    return Bad(fmt::format("call {} at byte {}: {}", calls_, offset_, what));
  }

  /// Makes bytes [offset_, offset_ + size) of the file available in memory. Never more than the
  /// file has.
  absl::StatusOr<const std::byte*> Fetch(int64_t size) {
    if (size > file_->size() - offset_) {
      return BadCall(fmt::format("{} bytes, the file has {} more", size, file_->size() - offset_));
    }
    if (offset_ < chunk_begin_ || offset_ + size > chunk_end_) {
      const int64_t want = std::min(std::max(size, kChunkBytes), file_->size() - offset_);
      chunk_.resize(want);
      chunk_begin_ = chunk_end_ = 0;
      MOERT_RETURN_IF_ERROR(file_->Read(offset_, absl::MakeSpan(chunk_)));
      chunk_begin_ = offset_;
      chunk_end_ = offset_ + want;
    }
    return chunk_.data() + (offset_ - chunk_begin_);
  }

  struct CallHeader {
    int64_t bytes = 0;  // of the call
    uint8_t phase = 0, flags = 0;
    int layer = 0;
    int64_t tokens = 0, step = 0;
  };

  absl::StatusOr<CallHeader> ReadCallHeader() {
    MOERT_ASSIGN_OR_RETURN(const std::byte* p, Fetch(trace::kCallHeaderBytes));
    const CallHeader call = {Load<int64_t>(p),       Load<uint8_t>(p + 8),   Load<uint8_t>(p + 9),
                             Load<uint16_t>(p + 10), Load<uint32_t>(p + 12), Load<int64_t>(p + 16)};
    if (call.phase > 1) return BadCall(fmt::format("phase {}: must be 0 or 1", call.phase));
    if ((call.flags & ~trace::kAllFlags) != 0) {
      return BadCall(fmt::format("unknown flags {}", call.flags));
    }
    if (call.layer >= header_.model.num_layers()) {
      return BadCall(
          fmt::format("layer {}: the model has {}", call.layer, header_.model.num_layers()));
    }
    if (call.tokens < 1 || call.tokens > header_.max_tokens) {
      return BadCall(fmt::format("{} tokens: must be in [1, {}]", call.tokens, header_.max_tokens));
    }
    if (call.step < 0) return BadCall("negative step");
    return call;
  }

  int64_t NumExperts(int layer) const {
    return header_.model.layers[layer % header_.model.num_layers()].num_experts;
  }

  absl::Status CheckSize(const CallHeader& call) const {
    Checked<int64_t> size((2 + score_bytes_) *
                          int64_t{header_.model.layers[call.layer].routing.top_k});
    if (call.flags & trace::kHasRequestIds) size.Add(8);
    if (call.flags & trace::kHasScores) size.Add(score_bytes_ * NumExperts(call.layer));
    if (call.flags & trace::kHasNextScores) size.Add(score_bytes_ * NumExperts(call.layer + 1));
    size.Mul(call.tokens)
        .Add(static_cast<int64_t>(trace::kCallHeaderBytes + trace::kTimesBytes))
        .Add(checksum_bytes_);
    if (size.value() == call.bytes) return absl::OkStatus();
    return BadCall(fmt::format("{} bytes, its fields take {}", call.bytes, *size.value()));
  }

  absl::Status ReadCall() {
    MOERT_ASSIGN_OR_RETURN(const CallHeader call, ReadCallHeader());
    MOERT_RETURN_IF_ERROR(CheckSize(call));
    const auto& [bytes, phase, flags, layer, tokens, step] = call;
    const int64_t k = header_.model.layers[layer].routing.top_k;
    const int64_t experts = NumExperts(layer), next = NumExperts(layer + 1);
    MOERT_ASSIGN_OR_RETURN(const std::byte* p, Fetch(bytes));
    const std::byte* const call_begin = p;
    p += trace::kCallHeaderBytes;
    MOERT_RETURN_IF_ERROR(LoadTimes(&p));
    request_ids_.resize(flags & trace::kHasRequestIds ? tokens : 0);
    for (int64_t& id : request_ids_) {
      id = Load<int64_t>(p);
      p += 8;
    }
    MOERT_RETURN_IF_ERROR(LoadIds(tokens, k, experts, &p));
    MOERT_RETURN_IF_ERROR(LoadScores("weights", tokens * k, &p, &weights_));
    MOERT_RETURN_IF_ERROR(
        LoadScores("scores", flags & trace::kHasScores ? tokens * experts : 0, &p, &scores_));
    MOERT_RETURN_IF_ERROR(LoadScores(
        "predicted scores", flags & trace::kHasNextScores ? tokens * next : 0, &p, &next_scores_));
    // Illegal values are reported above; the checksum finds damage that leaves legal values.
    const auto hashed = absl::MakeConstSpan(call_begin, p - call_begin);
    if (checksum_bytes_ > 0 && Load<uint64_t>(p) != Hash64(hashed)) {
      return Damaged(fmt::format("call {} at byte {}", calls_, offset_));
    }
    call_.step = step;
    call_.phase = static_cast<Phase>(phase);
    call_.layer = layer;
    call_.tokens = tokens;
    call_.request_ids = request_ids_;
    call_.ids = ids_;
    call_.weights = weights_;
    call_.scores = scores_;
    call_.next_scores = next_scores_;
    offset_ += bytes;
    return absl::OkStatus();
  }

  absl::Status LoadTimes(const std::byte** p) {
    int64_t times[6];
    for (int64_t& ns : times) {
      ns = Load<int64_t>(*p);
      *p += 8;
      // A limit of three decades keeps sums of times from overflowing.
      if (ns < 0 || ns > (int64_t{1} << 60)) return BadCall(fmt::format("time {} ns", ns));
    }
    call_.times = {times[0], times[1], times[2], times[3], times[4], times[5]};
    const CallTimes& t = call_.times;
    if (t.step_begin_ns > t.begin_ns || t.end_ns < t.begin_ns) {
      return BadCall("its times do not ascend");
    }
    for (const int64_t part : {t.route_ns, t.multiply_ns, t.stalled_ns}) {
      if (part <= t.end_ns - t.begin_ns) continue;
      return BadCall(fmt::format("a part of {} ns in a call of {}", part, t.end_ns - t.begin_ns));
    }
    return absl::OkStatus();
  }

  absl::Status LoadIds(int64_t tokens, int64_t k, int64_t experts, const std::byte** p) {
    ids_.resize(tokens * k);
    for (int64_t i = 0; i < tokens * k; ++i, *p += 2) {
      ids_[i] = Load<uint16_t>(*p);
      if (ids_[i] == trace::kNotHere && experts <= trace::kNotHere) {
        ids_[i] = -1;
        continue;
      }
      bool repeated = false;
      for (int64_t j = i / k * k; j < i; ++j) repeated = repeated || ids_[j] == ids_[i];
      if (ids_[i] >= experts || repeated) {
        return BadCall(fmt::format("token {}: expert {} {}", i / k, ids_[i],
                                   repeated ? "comes twice" : "does not exist"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status LoadScores(const char* what, int64_t count, const std::byte** p,
                          std::vector<float>* values) {
    values->resize(count);
    for (float& value : *values) {
      value = score_bytes_ == sizeof(float) ? Load<float>(*p) : F16ToF32(Load<uint16_t>(*p));
      if (!std::isfinite(value)) return BadCall(fmt::format("{}: not finite", what));
      *p += score_bytes_;
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<RandomAccessFile> file_;
  TraceHeader header_;
  int64_t checksum_bytes_ = 0;  // of the file's version
  int64_t score_bytes_ = 0;     // of a weight or score, likewise
  int64_t first_call_ = 0;
  int64_t offset_ = 0;
  int64_t calls_ = 0;
  std::vector<std::byte> chunk_;
  int64_t chunk_begin_ = 0, chunk_end_ = 0;  // of the file, what chunk_ holds
  TraceCall call_;
  std::vector<int64_t> request_ids_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_, scores_, next_scores_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TraceReader>> OpenTrace(const std::string& path) try {
  try {
    MOERT_ASSIGN_OR_RETURN(auto file, Env::Default()->Open(path, FileAccess::kBuffered));
    auto reader = std::make_unique<Reader>(std::move(file));
    MOERT_RETURN_IF_ERROR(reader->Open());
    return reader;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
} catch (...) {
  return ExceptionStatus("opening a trace");
}

}  // namespace moert
