// The blocks of a cache: as large as its records, as far as the backend can do that.
#ifndef MOERT_LIB_STORE_CACHE_BLOCKS_H_
#define MOERT_LIB_STORE_CACHE_BLOCKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/source/expert_source.h"
#include "store/block_pool.h"

namespace moert {

/// InvalidArgument where blocks for all experts of the source, each as large as the largest, have
/// more bytes than sums of such sizes can hold. The functions below come behind it.
absl::Status CheckBlockBytes(const ExpertSource& source);

struct CacheBlocks {
  BlockSizes sizes;
  int64_t largest = 0;    // bytes
  int64_t all_bytes = 0;  // of one block for every expert
};

enum class BlockKind : int8_t {
  /// Opaque records have a class a layer, so that slots of a layer have one base and stride, others
  /// a class a size. Where all are of one size, they are alike.
  kClasses,
  /// All alike, whole pages each.
  kAlike,
  /// All alike, in device memory: slots of opaque records may begin within a page.
  kDevice,
};

/// Blocks that hold any of `versions` of an expert, one for every expert.
CacheBlocks MeasureCacheBlocks(const ExpertSource& source, absl::Span<const int> versions,
                               BlockKind kind);

/// Blocks for every expert in each of `versions`, a class a size: index i of version v is that of
/// expert i, behind all experts of the versions before.
BlockSizes BlocksOfVersions(const ExpertSource& source, absl::Span<const int> versions);

/// Blocks of the mean size that `bytes` hold, at most all `total`.
int64_t SlotsOf(int64_t bytes, int64_t all_bytes, int64_t total);

/// A record's bytes in a pool.
int64_t BlockBytes(const RecordLayout& layout);

}  // namespace moert

#endif  // MOERT_LIB_STORE_CACHE_BLOCKS_H_
