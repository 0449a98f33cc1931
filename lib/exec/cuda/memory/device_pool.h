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

/// The most bytes that a pool may map beyond its blocks: it maps whole granules of at most this
/// size.
constexpr int64_t kPoolRounding = int64_t{2} << 20;

/// Address space for all blocks is reserved once. Physical memory is mapped under blocks when they
/// are taken, lowest first. It is unmapped when the limit has been lowered and no block of a run of
/// granules is taken any more; unmapping waits for `fence`. If that wait fails, because a stream is
/// being captured, nothing is unmapped. The budget is charged for the blocks held. The mapped bytes
/// are at most those of the limit's blocks, rounded up once (kPoolRounding), with one exception:
/// after the limit was lowered, scattered blocks keep up to 16 granules each mapped until they are
/// given back. `peers`: link to engines on other devices that may read the blocks; null: none.
/// `budget`, `fence` and `peers` are borrowed.
absl::StatusOr<std::unique_ptr<BlockPool>> MakeDevicePool(int device, const BlockSizes& sizes,
                                                          int64_t limit, BudgetTracker* budget,
                                                          ComputeFence* fence, PeerLink* peers);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_POOL_H_
