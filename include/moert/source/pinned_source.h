// One copy of the experts in host memory for all GPUs of a process: a source whose records lie in
// page-locked memory. Every engine over it copies from there, over the link of its own device.
#ifndef MOERT_SOURCE_PINNED_SOURCE_H_
#define MOERT_SOURCE_PINNED_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "moert/allocator.h"
#include "moert/source/expert_source.h"

namespace moert {

struct PinOptions {
  /// Limit of the memory, bytes; -1: all records. Records that do not fit (worse versions and last
  /// layers are left out first) are read from `source` by each engine.
  int64_t bytes = -1;
  /// Page-locked memory of the host's own (such as memory that other processes map too), which the
  /// host keeps page-locked for all devices; null: CUDA's.
  std::shared_ptr<HostAllocator> allocator = {};
  /// Threads that read; 0: one a core.
  int threads = 0;
  /// Called after each layer of a version, on the caller's thread. If it returns false, PinRecords
  /// gives up with Cancelled. May be null.
  std::function<bool(int64_t done_bytes, int64_t total_bytes)> progress = {};
};

/// Reads the records of `source` once. Engines over shards of experts copy from that memory too;
/// engines over shards of channels cut records of their own. ResourceExhausted if there is not
/// enough memory, Unavailable without CUDA and without an allocator, or the error of a read.
absl::StatusOr<std::shared_ptr<const ExpertSource>> PinRecords(
    std::shared_ptr<const ExpertSource> source, const PinOptions& options);

}  // namespace moert

#endif  // MOERT_SOURCE_PINNED_SOURCE_H_
