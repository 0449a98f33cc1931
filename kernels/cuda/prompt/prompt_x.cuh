// Where the rows of x of family P's products lie, and the scales or sums of its columns.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_X_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_X_CUH_

#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_roles.cuh"

namespace moert::cuda {

template <Packing kPacking>
__device__ __forceinline__ int64_t XStride(const PromptGemmArgs& args) {
  return Is8Bit(kPacking) ? args.byte_x_stride : args.x_stride;
}
template <Packing kPacking>
__device__ __forceinline__ const uint8_t* X(const PromptGemmArgs& args) {
  return Is8Bit(kPacking) ? args.byte_x[kPacking == Packing::kW8A8   ? 0
                                        : kPacking == Packing::kW4A8 ? 1
                                        : kPacking == Packing::kF8   ? 2
                                                                     : 3]
                          : args.x;
}

/// Bytes from a row of x to its scales or sums.
template <Packing kPacking>
__device__ __forceinline__ int64_t XFloats(const PromptGemmArgs& args) {
  return Is8Bit(kPacking) ? args.byte_x_scales : args.x_sums;
}
/// Index of the scale or sum of an activation row that is copied with piece k; negative: none.
template <Packing kPacking, typename Slot>
__device__ __forceinline__ int ColumnFloats(const Slot& slot, int k) {
  if constexpr (Is8Bit(kPacking)) return k;
  if (k >= slot.k64s) return -1;
  if (slot.group_k64s == 1) return k;
  if (slot.group_k64s == 2) return k % 2 != 0 ? -1 : slot.k64s + k / 2;
  return k != 0 ? -1 : slot.k64s + (slot.k64s + 1) / 2;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_X_CUH_
