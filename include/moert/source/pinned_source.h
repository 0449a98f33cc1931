// One copy of the experts in host memory for all GPUs of a process: a source whose records lie in
// page-locked memory, from which every engine over it copies, whatever its device, each over its
// device's own link.
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
  /// Most bytes of memory; -1: all records. Each engine reads records that do not fit, from the
  /// last layers on and of worse versions first, as from `source`.
  int64_t bytes = -1;
  /// Page-locked memory of the host's own (one that other processes map, say), which it has to keep
  /// page-locked for all devices; null: CUDA's.
  std::shared_ptr<HostAllocator> allocator = {};
  /// Threads that read; 0: one a core.
  int threads = 0;
  /// Called behind each layer of a version, on the caller's thread. False: given up, with
  /// Cancelled. May be null.
  std::function<bool(int64_t done_bytes, int64_t total_bytes)> progress = {};
};

/// Reads the records of `source` once. Engines over shards of experts copy from there too; those
/// over channels cut records of their own. ResourceExhausted where memory cannot be had,
/// Unavailable without CUDA and without an allocator, or what a read failed with.
absl::StatusOr<std::shared_ptr<const ExpertSource>> PinRecords(
    std::shared_ptr<const ExpertSource> source, const PinOptions& options);

}  // namespace moert

#endif  // MOERT_SOURCE_PINNED_SOURCE_H_
