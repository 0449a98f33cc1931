// BlockPool in device memory.
#ifndef MOERT_LIB_BACKEND_CUDA_DEVICE_POOL_H_
#define MOERT_LIB_BACKEND_CUDA_DEVICE_POOL_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "store/block_pool.h"

namespace moert::cuda {

/// Address space for max_blocks is reserved once; physical chunks are mapped when a block in them
/// is taken and unmapped when the pool is beyond its limit and nothing in them is taken, so
/// lowering the limit returns memory to the device. Unmapping waits for the device. The budget is
/// charged for the blocks held, not for what a chunk rounds up (at most one chunk while blocks were
/// never given back).
absl::StatusOr<std::unique_ptr<BlockPool>> MakeDevicePool(int device, int64_t block_bytes,
                                                          int64_t max_blocks, int64_t limit,
                                                          BudgetTracker* budget);

}  // namespace moert::cuda

#endif  // MOERT_LIB_BACKEND_CUDA_DEVICE_POOL_H_
