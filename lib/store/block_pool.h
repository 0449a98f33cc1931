// BlockPool: fixed-size blocks of the fast tier. Address space for every expert is reserved once;
// physical memory is held only for blocks that are taken, or were and may be again, so lowering the
// limit really returns bytes to the system.
#ifndef MOERT_LIB_STORE_BLOCK_POOL_H_
#define MOERT_LIB_STORE_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "moert/allocator.h"
#include "store/budget_tracker.h"

namespace moert {

/// Not thread-safe.
class BlockPool {
 public:
  virtual ~BlockPool() = default;

  int64_t block_bytes() const { return block_bytes_; }
  int64_t limit() const { return limit_; }
  int64_t taken() const { return taken_; }

  /// A block index, or -1 at the limit, when the budget has no room, or when memory ran out.
  virtual int32_t Take() = 0;
  virtual void Give(int32_t block) = 0;
  virtual std::byte* Address(int32_t block) const = 0;
  /// Blocks that may be taken from now on; memory of untaken ones beyond it is returned at once, of
  /// taken ones when they are given back.
  virtual void SetLimit(int64_t blocks) = 0;
  /// Bytes of physical memory held.
  virtual int64_t held_bytes() const = 0;

 protected:
  BlockPool(int64_t block_bytes, int64_t limit) : block_bytes_(block_bytes), limit_(limit) {}

  const int64_t block_bytes_;
  int64_t limit_;
  int64_t taken_ = 0;
};

/// Blocks of RAM, kRecordAlignment-aligned when block_bytes is a multiple of it. `budget` is
/// borrowed and charged for every held block.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeRamBlockPool(int64_t block_bytes, int64_t max_blocks,
                                                            int64_t limit, BudgetTracker* budget);

/// The same from a host's allocator, which is borrowed.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeHostBlockPool(HostAllocator* allocator,
                                                             int64_t block_bytes,
                                                             int64_t max_blocks, int64_t limit,
                                                             BudgetTracker* budget);

/// The same accounting with no memory behind it, for engines that simulate: addresses are not null
/// and must not be read.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeCountingBlockPool(int64_t block_bytes,
                                                                 int64_t max_blocks, int64_t limit,
                                                                 BudgetTracker* budget);

}  // namespace moert

#endif  // MOERT_LIB_STORE_BLOCK_POOL_H_
