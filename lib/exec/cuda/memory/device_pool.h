// BlockPool in device memory.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_POOL_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_POOL_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/memory/peer_link.h"
#include "store/block_pool.h"

namespace moert::cuda {

/// The most that a pool may map beyond its blocks: it maps whole granules of at most this size.
constexpr int64_t kPoolRounding = int64_t{2} << 20;

/// Address space for all blocks is reserved once; physical memory is mapped under blocks when they
/// are taken, lowest first, and unmapped when the limit is lowered and nothing in a piece is taken
/// any more (unmapping waits for `fence`). The budget is charged for the blocks held; mapped is
/// at most what the limit's blocks need, rounded up once (kPoolRounding), except that after the
/// limit was lowered scattered blocks keep up to 16 granules each mapped until they are given back.
/// Nothing is unmapped where that wait fails: while a stream is captured. `peers`: of engines on
/// other devices that may read the blocks; null: none. `budget`, `fence` and `peers` are borrowed.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeDevicePool(int device, const BlockSizes& sizes,
                                                          int64_t limit, BudgetTracker* budget,
                                                          ComputeFence* fence, PeerLink* peers);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_POOL_H_
