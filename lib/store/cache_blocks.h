// The block sizes of a cache: those of its records, as far as the backend supports that.
#ifndef MOERT_LIB_STORE_CACHE_BLOCKS_H_
#define MOERT_LIB_STORE_CACHE_BLOCKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/source/expert_source.h"
#include "store/block_pool.h"

namespace moert {

/// InvalidArgument if blocks for all experts of the source, each as large as the largest, could
/// overflow sums of such sizes. To be called before the functions below.
absl::Status CheckBlockBytes(const ExpertSource& source);

struct CacheBlocks {
  BlockSizes sizes;
  int64_t largest = 0;    // bytes
  int64_t all_bytes = 0;  // of one block for every expert
};

enum class BlockKind : int8_t {
  /// Classes. Opaque records have one class per layer, so that the slots of a layer have one base
  /// and
  /// stride; other records have one class per size. If all records have one size, as kAlike.
  kClasses,
  /// All of one size, in whole pages.
  kAlike,
  /// All of one size, in device memory: slots of opaque records may begin within a page.
  kDevice,
};

/// Blocks that can hold an expert in any of `versions`, one for every expert.
CacheBlocks MeasureCacheBlocks(const ExpertSource& source, absl::Span<const int> versions,
                               BlockKind kind);

/// Blocks for every expert in each of `versions`, one class per size. Indices count version by
/// version: expert i in version number v has index v * experts + i.
BlockSizes BlocksOfVersions(const ExpertSource& source, absl::Span<const int> versions);

/// The number of blocks of the mean size that `bytes` hold, at most `total`.
int64_t SlotsOf(int64_t bytes, int64_t all_bytes, int64_t total);

/// The bytes that a record takes in a pool.
int64_t BlockBytes(const RecordLayout& layout);

}  // namespace moert

#endif  // MOERT_LIB_STORE_CACHE_BLOCKS_H_
