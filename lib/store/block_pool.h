// BlockPool: blocks of the fast tier, all of one size or each of its own. Address space for every
// expert is reserved once. Physical memory is held only for blocks that are taken, or that were
// taken and may be again, so lowering the limit really returns bytes to the system.
#ifndef MOERT_LIB_STORE_BLOCK_POOL_H_
#define MOERT_LIB_STORE_BLOCK_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/allocator.h"

namespace moert {

/// BudgetTracker: the bytes of one memory tier, reserved before they are taken (DynaExq Sec. 4.3).
/// Thread-safe and lock-free.
class BudgetTracker {
 public:
  explicit BudgetTracker(int64_t limit) : limit_(limit) {}

  /// False, with nothing changed, when `bytes` more would exceed the limit.
  bool TryReserve(int64_t bytes) {
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (used + bytes > limit_.load(std::memory_order_relaxed)) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (used + bytes > peak &&
           !peak_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
    }
    return true;
  }
  void Release(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  /// If the limit is below used(), every reservation fails until enough was released.
  void SetLimit(int64_t limit) { limit_.store(limit, std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> limit_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> peak_{0};
};

class BlockMemory;

/// Interchangeable blocks: contiguous, all of one size.
struct BlockClass {
  int64_t bytes = 0;
  int64_t count = 0;
};

/// The memory of the blocks that one expert may have.
struct BlockRegion {
  const std::byte* base = nullptr;  // null: scattered
  int64_t stride = 0;               // bytes from block to block
  int64_t blocks = 0;
};

/// The number, sizes and offsets of a pool's blocks, which are contiguous.
class BlockSizes {
 public:
  /// All of one size: any expert's record fits into any block.
  BlockSizes(int64_t bytes, int64_t count) : count_(count), bytes_(bytes) {}
  /// Each block of its own size, for records that stay: the pool takes only the bytes they need.
  explicit BlockSizes(absl::Span<const int64_t> bytes);

  /// In classes: the expert of index i takes any block of class class_of[i].
  BlockSizes(std::vector<BlockClass> classes, std::vector<int32_t> class_of);

  /// InvalidArgument unless there are blocks, their sizes are positive and the sum does not
  /// overflow.
  absl::Status Check() const;

  int64_t count() const { return count_; }
  bool alike() const { return offsets_.empty() && classes_.empty(); }
  /// The offset of a block; Offset(count()) is the end of the last block.
  int64_t Offset(int64_t block) const {
    if (!offsets_.empty()) return offsets_[block];
    if (classes_.empty()) return block * bytes_;
    const Class& c = classes_[ClassOf(block)];
    return c.offset + (block - c.first) * c.bytes;
  }
  int64_t Bytes(int64_t block) const {
    if (!classes_.empty()) return classes_[ClassOf(block)].bytes;
    return offsets_.empty() ? bytes_ : Offset(block + 1) - Offset(block);
  }

  /// The size of the blocks that the expert of `index` may have.
  int64_t BytesFor(int64_t index) const {
    return classes_.empty() ? Bytes(alike() ? 0 : index) : Bytes(first(ClassFor(index)));
  }

  // Sizes of classes.

  int classes() const { return static_cast<int>(classes_.size()); }
  /// The class of a block; ClassOf(count()) is the last class.
  int ClassOf(int64_t block) const;
  int ClassFor(int64_t index) const { return class_of_[index]; }
  int64_t first(int c) const { return classes_[c].first; }
  int64_t end(int c) const { return c + 1 < classes() ? first(c + 1) : count_; }

 private:
  struct Class {
    int64_t first = 0;  // its first block
    int64_t bytes = 0;  // of each block
    int64_t offset = 0;
  };

  int64_t count_;
  int64_t bytes_ = 0;             // of each block, if all have one size
  std::vector<int64_t> offsets_;  // [count + 1], if each has its own size
  std::vector<Class> classes_;    // if the blocks are in classes
  std::vector<int32_t> class_of_;
  bool overflow_ = false;
};

/// Blocks that were never taken are handed out in ascending order. Not thread-safe.
class BlockPool {
 public:
  virtual ~BlockPool() = default;

  int64_t bytes(int32_t block) const { return sizes_.Bytes(block); }
  /// The size of the blocks that TakeFor(index) chooses from.
  int64_t BytesFor(int64_t index) const { return sizes_.BytesFor(index); }
  int64_t limit() const { return limit_; }
  int64_t taken() const { return taken_; }
  /// If limits and budget allowed the last failed Take: names who refused the memory, the host's
  /// allocator or the system. Else empty.
  absl::string_view refused_by() const { return refused_by_; }

  /// A block index, or -1 at the limit, when the budget has no room, or when memory ran out.
  virtual int32_t Take() = 0;
  /// A block for the expert of `index`: its own if each expert has one, one of its class if there
  /// are classes, else any.
  virtual int32_t TakeFor(int64_t index);
  /// The blocks that TakeFor(index) chooses from.
  virtual BlockRegion Region(int64_t index) const;
  virtual void Give(int32_t block) = 0;
  virtual std::byte* Address(int32_t block) const = 0;
  /// The number of blocks that may be taken from now on. Memory of free blocks beyond the limit is
  /// returned at once, that of taken ones when they are given back.
  virtual void SetLimit(int64_t blocks) = 0;
  /// For pools with classes: limits the bytes of taken blocks, in place of their number.
  virtual void SetByteLimit(int64_t /*bytes*/) {}
  virtual int64_t limit_bytes() const { return std::numeric_limits<int64_t>::max(); }
  /// Whether more blocks, or bytes, are taken than these limits would allow.
  virtual bool Over(int64_t blocks, int64_t /*bytes*/) const { return taken_ > blocks; }
  /// Whether any two blocks can stand in for each other.
  bool alike() const { return sizes_.alike(); }
  /// Bytes of physical memory held.
  virtual int64_t held_bytes() const = 0;
  /// Holds the memory of all blocks within the limit from now on. False: not of all of them,
  /// because blocks beyond the limit are still taken.
  virtual bool HoldAll() { return true; }

 protected:
  BlockPool(BlockSizes sizes, int64_t limit) : sizes_(std::move(sizes)), limit_(limit) {}

  const BlockSizes sizes_;
  int64_t limit_;
  int64_t taken_ = 0;
  absl::string_view refused_by_;
};

inline constexpr absl::string_view kHostRefused = "the host's allocator returned NULL";

/// "no memory for layer 1 expert 2: ...", with the name of who refused it.
absl::Status NoMemoryFor(int layer, int expert, const BlockPool& pool);

/// A pool in RAM. Blocks are kRecordAlignment-aligned if all sizes are multiples of it. `budget` is
/// borrowed and charged for every held block. Memory comes from `numa_node`; -1: from any node.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeRamBlockPool(const BlockSizes& sizes, int64_t limit,
                                                            BudgetTracker* budget,
                                                            int numa_node = -1);

/// The same, with memory of the host's allocator, which is borrowed.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeHostBlockPool(HostAllocator* allocator,
                                                             const BlockSizes& sizes, int64_t limit,
                                                             BudgetTracker* budget);

/// The same accounting without memory, for engines that simulate: addresses are not null and must
/// not be read.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeCountingBlockPool(const BlockSizes& sizes,
                                                                 int64_t limit,
                                                                 BudgetTracker* budget);

/// A pool of blocks in classes over `memory`. The byte limit bounds the taken blocks, and memory
/// moves between the classes as they need it.
std::unique_ptr<BlockPool> MakeClassedBlockPool(std::unique_ptr<BlockMemory> memory,
                                                const BlockSizes& sizes, int64_t limit,
                                                BudgetTracker* budget);

/// BlockMemory: the memory behind the blocks of a pool. It does not charge the budget.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  /// Provides the memory of a block. Null: there is none left.
  virtual std::byte* Hold(int32_t block) = 0;
  virtual void Drop(int32_t block) = 0;
  virtual std::byte* Address(int32_t block) const = 0;
  /// Whether memory between held blocks may be held too (huge pages). False at first.
  virtual void MayFillUp(bool /*may*/) {}
  /// Whether the blocks are contiguous.
  virtual bool contiguous() const { return false; }
};

/// Reserves address space for all blocks. ResourceExhausted: there is not enough of it.
absl::StatusOr<std::unique_ptr<BlockMemory>> MakeRamMemory(const BlockSizes& sizes, int numa_node);
/// Memory of a host's allocator, one allocation per block. Borrows the allocator.
std::unique_ptr<BlockMemory> MakeHostMemory(HostAllocator* allocator, const BlockSizes& sizes);
/// No memory: addresses are not null and must not be read.
std::unique_ptr<BlockMemory> MakeNoMemory();

}  // namespace moert

#endif  // MOERT_LIB_STORE_BLOCK_POOL_H_
