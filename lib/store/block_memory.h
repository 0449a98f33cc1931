// BlockMemory: what lies under the blocks of a pool. Nothing is charged here.
#ifndef MOERT_LIB_STORE_BLOCK_MEMORY_H_
#define MOERT_LIB_STORE_BLOCK_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "moert/allocator.h"
#include "store/block_pool.h"

namespace moert {

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

#endif  // MOERT_LIB_STORE_BLOCK_MEMORY_H_
