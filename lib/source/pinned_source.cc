#include "source/pinned_source.h"

#include <algorithm>

#include "base/bytes_text.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/pinned_memory.h"
#include "base/status_macros.h"
#include "moert/source/pinned_source.h"

namespace moert {

int64_t PinnedSource::TotalBytes() const {
  int64_t total = 0;
  for (int v = 0; v < num_versions(); ++v) {
    for (int l = 0; l < model().num_layers(); ++l) total += LayerBytes(l, v);
  }
  return total;
}

absl::Status PinnedSource::Read(const ReadOptions& options) {
  locked_ = options.locked;
  std::unique_ptr<ThreadPool> pool;
  if (!options.there) {
    ThreadPoolOptions threads;
    threads.threads = options.threads;
    MOERT_ASSIGN_OR_RETURN(pool, CreateThreadPool(threads));
  }
  int64_t total = TotalBytes(), done = 0;
  if (options.bytes >= 0) total = std::min(total, options.bytes);
  for (int v = 0; v < num_versions(); ++v) {
    for (int l = 0; l < model().num_layers(); ++l) {
      const int64_t bytes = std::min(LayerBytes(l, v), total - done);
      if (bytes == 0) continue;
      MOERT_RETURN_IF_ERROR(ReadLayer(l, v, bytes, pool.get()));
      done += bytes;
      if (options.progress == nullptr || options.progress(done, total)) continue;
      return Cancelled("reading the records of {} was cancelled", name());
    }
  }
  return absl::OkStatus();
}

/// The first records of a layer, as many as `bytes` hold.
absl::Status PinnedSource::ReadLayer(int layer, int version, int64_t bytes, ThreadPool* pool) {
  std::vector<int64_t> at;  // of each expert; those behind do not fit
  int64_t end = 0;
  for (int e = 0; e < model().layers[layer].num_experts; ++e) {
    const int64_t record = RecordBytes(layer, e, version);
    if (end + record > bytes) break;
    at.push_back(end);
    end += record;
  }
  if (end == 0) return absl::OkStatus();
  memory_.reserve(memory_.size() + 1);
  auto* const memory = static_cast<std::byte*>(allocator_->Allocate(end, kRecordAlignment));
  if (memory == nullptr) {
    return ResourceExhausted("{} of page-locked memory for layer {} of {}", BytesText(end), layer,
                             name());
  }
  memory_.emplace_back(memory, end);
  if (pool == nullptr) {
    for (size_t e = 0; e < at.size(); ++e) {
      const auto expert = static_cast<int>(e);
      if (RecordBytes(layer, expert, version) == 0) continue;
      records_[Index(layer, expert, version)] = memory + at[e];
    }
    return absl::OkStatus();
  }
  std::vector<RecordRead> reads;
  for (size_t e = 0; e < at.size(); ++e) {
    const auto expert = static_cast<int>(e);
    if (RecordBytes(layer, expert, version) == 0) continue;
    reads.push_back({layer, expert, memory + at[e]});
  }
  std::vector<absl::Status> read;
  ReadRecords(*source_, version, reads, pool, &read);
  for (size_t i = 0; i < reads.size(); ++i) {
    if (read[i].ok()) records_[Index(layer, reads[i].expert, version)] = reads[i].to;
  }
  return FirstError(read);
}

absl::StatusOr<std::shared_ptr<const ExpertSource>> PinRecords(
    std::shared_ptr<const ExpertSource> source, const PinOptions& options) try {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  if (options.bytes < -1) {
    return InvalidArgument("bytes {}: must be 0 or more, or -1: all", options.bytes);
  }
  std::shared_ptr<HostAllocator> allocator = options.allocator;
  if (allocator == nullptr) {
    MOERT_ASSIGN_OR_RETURN(allocator, MakePinnedAllocator());
  }
  auto pinned = std::make_shared<PinnedSource>(std::move(source), std::move(allocator));
  MOERT_RETURN_IF_ERROR(
      pinned->Read({options.bytes, options.threads, false, true, options.progress}));
  return pinned;
} catch (...) {
  return ExceptionStatus("pinning records");
}

}  // namespace moert
