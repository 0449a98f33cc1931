// BlockPool: blocks of the fast tier, all of one size or each of its own. Address space for every
// expert is reserved once; physical memory is held only for blocks that are taken, or were and may
// be again, so lowering the limit really returns bytes to the system.
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

  /// A limit below what is used refuses every reservation until enough was released.
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

/// Blocks that are interchangeable: one behind the other, all of one size.
struct BlockClass {
  int64_t bytes = 0;
  int64_t count = 0;
};

/// Where the blocks lie that one expert may have.
struct BlockRegion {
  const std::byte* base = nullptr;  // null: scattered
  int64_t stride = 0;               // bytes from block to block
  int64_t blocks = 0;
};

/// How many blocks a pool has, how large they are, and where they lie, one behind the other.
class BlockSizes {
 public:
  /// All of them alike: any expert's record fits into any.
  BlockSizes(int64_t bytes, int64_t count) : count_(count), bytes_(bytes) {}
  /// Each of its own size, for records that stay: the pool takes what they need and no more.
  explicit BlockSizes(absl::Span<const int64_t> bytes);

  /// In classes: an expert of index i takes any block of class class_of[i].
  BlockSizes(std::vector<BlockClass> classes, std::vector<int32_t> class_of);

  /// InvalidArgument unless there are blocks, of positive sizes, whose sum does not overflow.
  absl::Status Check() const;

  int64_t count() const { return count_; }
  bool alike() const { return offsets_.empty() && classes_.empty(); }
  /// Where a block begins; of block count(), where the last ends.
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

  /// The size of the blocks that the expert of this index may have.
  int64_t BytesFor(int64_t index) const {
    return classes_.empty() ? Bytes(alike() ? 0 : index) : Bytes(first(ClassFor(index)));
  }

  // Sizes of classes.

  int classes() const { return static_cast<int>(classes_.size()); }
  /// The class of a block; of block count(), the last.
  int ClassOf(int64_t block) const;
  int ClassFor(int64_t index) const { return class_of_[index]; }
  int64_t first(int c) const { return classes_[c].first; }
  int64_t end(int c) const { return c + 1 < classes() ? first(c + 1) : count_; }

 private:
  struct Class {
    int64_t first = 0;  // block
    int64_t bytes = 0;  // of each
    int64_t offset = 0;
  };

  int64_t count_;
  int64_t bytes_ = 0;             // of each, where they are alike
  std::vector<int64_t> offsets_;  // else [count + 1]...
  std::vector<Class> classes_;    // ...or these
  std::vector<int32_t> class_of_;
  bool overflow_ = false;
};

/// Blocks nobody took yet are handed out in ascending order. Not thread-safe.
class BlockPool {
 public:
  virtual ~BlockPool() = default;

  int64_t bytes(int32_t block) const { return sizes_.Bytes(block); }
  /// The size of the blocks that TakeFor(index) chooses from.
  int64_t BytesFor(int64_t index) const { return sizes_.BytesFor(index); }
  int64_t limit() const { return limit_; }
  int64_t taken() const { return taken_; }
  /// The name of what refused the last block that was not given, the host's allocator or the
  /// system, where limits and budget allowed it. Empty: neither did.
  absl::string_view refused_by() const { return refused_by_; }

  /// A block index, or -1 at the limit, when the budget has no room, or when memory ran out.
  virtual int32_t Take() = 0;
  /// For the expert of this index: its own block where each has one, one of its class where there
  /// are classes, else any.
  virtual int32_t TakeFor(int64_t index);
  /// The blocks that TakeFor(index) chooses from.
  virtual BlockRegion Region(int64_t index) const;
  virtual void Give(int32_t block) = 0;
  virtual std::byte* Address(int32_t block) const = 0;
  /// Blocks that may be taken from now on; memory of untaken ones beyond it is returned at once, of
  /// taken ones when they are given back.
  virtual void SetLimit(int64_t blocks) = 0;
  /// Where there are classes: bytes that taken blocks may have, in place of their number.
  virtual void SetByteLimit(int64_t /*bytes*/) {}
  virtual int64_t limit_bytes() const { return std::numeric_limits<int64_t>::max(); }
  /// Whether more is taken than these limits would allow.
  virtual bool Over(int64_t blocks, int64_t /*bytes*/) const { return taken_ > blocks; }
  /// Whether any two blocks can stand in for each other.
  bool alike() const { return sizes_.alike(); }
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
  absl::string_view refused_by_;
};

inline constexpr absl::string_view kHostRefused = "the host's allocator returned NULL";

/// "no memory for layer 1 expert 2: ...", by who refused it.
absl::Status NoMemoryFor(int layer, int expert, const BlockPool& pool);

/// Blocks of RAM, kRecordAlignment-aligned when all sizes are multiples of it. `budget` is borrowed
/// and charged for every held block. Memory comes from `numa_node`; -1: from anywhere.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeRamBlockPool(const BlockSizes& sizes, int64_t limit,
                                                            BudgetTracker* budget,
                                                            int numa_node = -1);

/// The same from a host's allocator, which is borrowed.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeHostBlockPool(HostAllocator* allocator,
                                                             const BlockSizes& sizes, int64_t limit,
                                                             BudgetTracker* budget);

/// The same accounting with no memory behind it, for engines that simulate: addresses are not null
/// and must not be read.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeCountingBlockPool(const BlockSizes& sizes,
                                                                 int64_t limit,
                                                                 BudgetTracker* budget);

/// Blocks in classes over `memory`. The byte limit bounds what is taken, and memory moves from
/// class to class as they need it.
std::unique_ptr<BlockPool> MakeClassedBlockPool(std::unique_ptr<BlockMemory> memory,
                                                const BlockSizes& sizes, int64_t limit,
                                                BudgetTracker* budget);

/// BlockMemory: what lies under the blocks of a pool. Nothing is charged here.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  /// Null: there is none.
  virtual std::byte* Hold(int32_t block) = 0;
  virtual void Drop(int32_t block) = 0;
  virtual std::byte* Address(int32_t block) const = 0;
  /// Whether memory between blocks that are held may be held too. False at first.
  virtual void MayFillUp(bool /*may*/) {}
  /// Whether blocks lie one behind the other.
  virtual bool contiguous() const { return false; }
};

/// Address space for all blocks. ResourceExhausted: there is not so much.
absl::StatusOr<std::unique_ptr<BlockMemory>> MakeRamMemory(const BlockSizes& sizes, int numa_node);
/// A host's allocator, one allocation a block. Borrows it.
std::unique_ptr<BlockMemory> MakeHostMemory(HostAllocator* allocator, const BlockSizes& sizes);
/// None: addresses are not null and must not be read.
std::unique_ptr<BlockMemory> MakeNoMemory();

}  // namespace moert

#endif  // MOERT_LIB_STORE_BLOCK_POOL_H_
