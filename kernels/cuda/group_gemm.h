// Family D: the grouped product of a wave's tiles, memory-bound form (mma.sync, sm_80 and later).
//
// Weights stream once from device memory through rings of shared memory that each warp keeps for
// itself; a CTA's warps split K, so no barrier stands in the stream. Which CTA computes a task
// changes nothing in its arithmetic: the split of K depends on the matrix alone, and sums run in a
// fixed order (design rule 6).
#ifndef MOERT_KERNELS_CUDA_GROUP_GEMM_H_
#define MOERT_KERNELS_CUDA_GROUP_GEMM_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// All pointers are device memory. Activations are bf16 in packed rows (pack_rows.h).
struct GroupGemmArgs {
  TileTable table;
  const DeviceFormat* formats = nullptr;
  const uint16_t* x = nullptr;  // [tokens] packed rows of x_stride
  uint16_t* h = nullptr;        // [slots] packed rows of h_stride: act(gate x) * (up x)
  float* out = nullptr;         // [slots, out_stride]: down h
  int64_t x_stride = 0;         // elements, a multiple of 64
  int64_t h_stride = 0;
  int64_t out_stride = 0;
  int32_t pairs = 0;       // slots below this are (token, j): token * top_k + j
  int32_t top_k = 1;       // slots from `pairs` on are one a token: the shared expert
  int32_t hidden = 0;      // channels of out that are written
  int32_t activation = 0;  // moert::Activation
};

/// Enqueues gate+up with the activation: x -> h. 0 or a cudaError_t.
int LaunchGateUp(const GroupGemmArgs& args, int ctas, CUstream_st* stream);
/// Enqueues down: h -> out.
int LaunchDown(const GroupGemmArgs& args, int ctas, CUstream_st* stream);

/// CTAs that run at a time on the current device, for `ctas`. 0 on an error.
int GroupGemmCtas();

/// How a matrix is cut: warps of a CTA that share its K, and tasks of a tile.
constexpr int kGemmWarps = 8;
MOERT_HOST_DEVICE constexpr int KSlices(int k64s) {
  return k64s >= 64 ? 8 : k64s >= 16 ? 4 : k64s >= 8 ? 2 : 1;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_GROUP_GEMM_H_
