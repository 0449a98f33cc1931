// BlockPool: blocks of the fast tier, all of one size or each of its own. Address space for every
// expert is reserved once; physical memory is held only for blocks that are taken, or were and may
// be again, so lowering the limit really returns bytes to the system.
#ifndef MOERT_LIB_STORE_BLOCK_POOL_H_
#define MOERT_LIB_STORE_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/allocator.h"
#include "store/budget_tracker.h"

namespace moert {

/// How many blocks a pool has, how large they are, and where they lie, one behind the other.
class BlockSizes {
 public:
  /// All of them alike: any expert's record fits into any.
  BlockSizes(int64_t bytes, int64_t count) : count_(count), bytes_(bytes) {}
  /// Each of its own size, for records that stay: the pool takes what they need and no more.
  explicit BlockSizes(absl::Span<const int64_t> bytes);

  /// InvalidArgument unless there are blocks, of positive sizes, whose sum does not overflow.
  absl::Status Check() const;

  int64_t count() const { return count_; }
  bool alike() const { return offsets_.empty(); }
  /// Where a block begins; of block count(), where the last ends.
  int64_t Offset(int64_t block) const {
    return offsets_.empty() ? block * bytes_ : offsets_[static_cast<size_t>(block)];
  }
  int64_t Bytes(int64_t block) const {
    return offsets_.empty() ? bytes_ : Offset(block + 1) - Offset(block);
  }

 private:
  int64_t count_;
  int64_t bytes_ = 0;             // of each, where they are alike
  std::vector<int64_t> offsets_;  // else [count + 1]
};

/// Blocks nobody took yet are handed out in ascending order. Not thread-safe.
class BlockPool {
 public:
  virtual ~BlockPool() = default;

  int64_t bytes(int32_t block) const { return sizes_.Bytes(block); }
  int64_t limit() const { return limit_; }
  int64_t taken() const { return taken_; }

  /// A block index, or -1 at the limit, when the budget has no room, or when memory ran out.
  virtual int32_t Take() = 0;
  /// For the expert of this index: its own block where each has one, else any.
  int32_t TakeFor(int64_t index);
  virtual void Give(int32_t block) = 0;
  virtual std::byte* Address(int32_t block) const = 0;
  /// Blocks that may be taken from now on; memory of untaken ones beyond it is returned at once, of
  /// taken ones when they are given back.
  virtual void SetLimit(int64_t blocks) = 0;
  /// Bytes of physical memory held.
  virtual int64_t held_bytes() const = 0;
  /// Holds the memory of every block of the limit from now on. False: not all of it, as blocks
  /// beyond are still taken.
  virtual bool HoldAll() { return true; }

 protected:
  BlockPool(BlockSizes sizes, int64_t limit) : sizes_(std::move(sizes)), limit_(limit) {}

  const BlockSizes sizes_;
  int64_t limit_;
  int64_t taken_ = 0;
};

/// Blocks of RAM, kRecordAlignment-aligned when all sizes are multiples of it. `budget` is borrowed
/// and charged for every held block.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeRamBlockPool(const BlockSizes& sizes, int64_t limit,
                                                            BudgetTracker* budget);

/// The same from a host's allocator, which is borrowed.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeHostBlockPool(HostAllocator* allocator,
                                                             const BlockSizes& sizes, int64_t limit,
                                                             BudgetTracker* budget);

/// The same accounting with no memory behind it, for engines that simulate: addresses are not null
/// and must not be read.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeCountingBlockPool(const BlockSizes& sizes,
                                                                 int64_t limit,
                                                                 BudgetTracker* budget);

}  // namespace moert

#endif  // MOERT_LIB_STORE_BLOCK_POOL_H_
