#include "moert/pinned_source.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes_text.h"
#include "base/checked_math.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "exec/pinned_memory.h"
#include "fmt/format.h"
#include "moert/default_thread_pool.h"

namespace moert {
namespace {

class PinnedSource final : public ExpertSource {
 public:
  PinnedSource(std::shared_ptr<const ExpertSource> source, std::shared_ptr<HostAllocator> allocator)
      : source_(std::move(source)), allocator_(std::move(allocator)) {
    for (const MoeLayerSpec& layer : model().layers) {
      first_.push_back(experts_);
      experts_ += layer.num_experts;
    }
    records_.resize(static_cast<size_t>(experts_ * num_versions()));
  }
  ~PinnedSource() override {
    for (const auto& [memory, bytes] : memory_) allocator_->Free(memory, bytes);
  }

  absl::Status Read(const PinOptions& options);

  const MoeModelSpec& model() const override { return source_->model(); }
  const std::string& name() const override { return source_->name(); }
  int num_versions() const override { return source_->num_versions(); }
  absl::string_view version_name(int version) const override {
    return source_->version_name(version);
  }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    return source_->layout(layer, expert, version);
  }
  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    const std::byte* record = PinnedRecord(layer, expert, version);
    if (record == nullptr) return source_->ReadRecord(layer, expert, version, dst);
    std::memcpy(dst.data(), record, static_cast<size_t>(layout(layer, expert, version).bytes));
    return absl::OkStatus();
  }
  const std::byte* PinnedRecord(int layer, int expert, int version) const override {
    const std::byte* own = records_[Index(layer, expert, version)];
    return own != nullptr ? own : source_->PinnedRecord(layer, expert, version);
  }
  int64_t scratch_bytes() const override { return source_->scratch_bytes(); }
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    return source_->ReadConstants(layer);
  }

 private:
  size_t Index(int layer, int expert, int version) const {
    return static_cast<size_t>(experts_ * version + first_[static_cast<size_t>(layer)] + expert);
  }
  int64_t RecordBytes(int layer, int expert, int version) const {
    if (source_->PinnedRecord(layer, expert, version) != nullptr) return 0;  // there already
    return RoundUp(layout(layer, expert, version).bytes, kRecordAlignment);
  }
  int64_t LayerBytes(int layer, int version) const {
    int64_t bytes = 0;
    for (int e = 0; e < model().layers[static_cast<size_t>(layer)].num_experts; ++e) {
      bytes += RecordBytes(layer, e, version);
    }
    return bytes;
  }
  absl::Status ReadLayer(int layer, int version, int64_t bytes, ThreadPool* pool);

  const std::shared_ptr<const ExpertSource> source_;
  const std::shared_ptr<HostAllocator> allocator_;
  int64_t experts_ = 0;         // of all layers
  std::vector<int64_t> first_;  // of each layer
  std::vector<const std::byte*> records_;
  std::vector<std::pair<void*, int64_t>> memory_;
};

absl::Status PinnedSource::Read(const PinOptions& options) {
  ThreadPoolOptions threads;
  threads.threads = options.threads;
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, CreateThreadPool(threads));
  int64_t total = 0, done = 0;
  for (int v = 0; v < num_versions(); ++v) {
    for (int l = 0; l < model().num_layers(); ++l) total += LayerBytes(l, v);
  }
  if (options.bytes >= 0) total = std::min(total, options.bytes);
  for (int v = 0; v < num_versions(); ++v) {
    for (int l = 0; l < model().num_layers(); ++l) {
      const int64_t bytes = std::min(LayerBytes(l, v), total - done);
      if (bytes == 0) continue;
      MOERT_RETURN_IF_ERROR(ReadLayer(l, v, bytes, pool.get()));
      done += bytes;
      if (options.progress != nullptr) options.progress(done, total);
    }
  }
  return absl::OkStatus();
}

/// The first records of a layer, as many as `bytes` hold.
absl::Status PinnedSource::ReadLayer(int layer, int version, int64_t bytes, ThreadPool* pool) {
  std::vector<int64_t> at;  // of each expert; those behind do not fit
  int64_t end = 0;
  for (int e = 0; e < model().layers[static_cast<size_t>(layer)].num_experts; ++e) {
    const int64_t record = RecordBytes(layer, e, version);
    if (end + record > bytes) break;
    at.push_back(end);
    end += record;
  }
  if (end == 0) return absl::OkStatus();
  memory_.reserve(memory_.size() + 1);
  auto* const memory = static_cast<std::byte*>(allocator_->Allocate(end, kRecordAlignment));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        fmt::format("{} of page-locked memory for layer {} of {}", BytesText(end), layer, name()));
  }
  memory_.emplace_back(memory, end);
  std::vector<absl::Status> read(at.size());
  pool->Run(static_cast<int64_t>(at.size()), [&](int64_t e, int) {
    const auto i = static_cast<size_t>(e);
    const auto expert = static_cast<int>(e);
    const int64_t record = RecordBytes(layer, expert, version);
    if (record == 0) return;
    try {
      read[i] = source_->ReadRecord(layer, expert, version,
                                    {memory + at[i], static_cast<size_t>(record)});
    } catch (...) {
      read[i] = ExceptionStatus("reading a record");
    }
    if (read[i].ok()) records_[Index(layer, expert, version)] = memory + at[i];
  });
  absl::Status status;
  for (const absl::Status& one : read) status.Update(one);
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ExpertSource>> PinRecords(
    std::shared_ptr<const ExpertSource> source, const PinOptions& options) try {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  if (options.bytes < -1) {
    return absl::InvalidArgumentError(
        fmt::format("bytes {}: must be 0 or more, or -1: all", options.bytes));
  }
  std::shared_ptr<HostAllocator> allocator = options.allocator;
  if (allocator == nullptr) {
    MOERT_ASSIGN_OR_RETURN(allocator, MakePinnedAllocator());
  }
  auto pinned = std::make_shared<PinnedSource>(std::move(source), std::move(allocator));
  MOERT_RETURN_IF_ERROR(pinned->Read(options));
  return pinned;
} catch (...) {
  return ExceptionStatus("pinning records");
}

}  // namespace moert
