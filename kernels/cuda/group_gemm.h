// Family D: the grouped product of a wave's tiles, memory-bound form (mma.sync, sm_80 and later).
//
// An item is a pair of row blocks of one tile: the gate and the up block of 16 channels, or two
// blocks of down. The warps of a CTA form groups that split K; each group takes every n-th item of
// the CTA's share, so groups wait for nobody but themselves. Weights stream once from device memory
// through rings of shared memory that each warp keeps for itself, across items and tiles.
//
// Which CTA or group computes an item changes nothing in its arithmetic: the split of K depends on
// the matrix alone, and sums run in a fixed order (design rule 6).
#ifndef MOERT_KERNELS_CUDA_GROUP_GEMM_H_
#define MOERT_KERNELS_CUDA_GROUP_GEMM_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// All pointers are device memory. Activations are bf16 in packed rows (rows.h).
struct GroupGemmArgs {
  TileTable table;
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
  int32_t product = 0;     // set by the launch
};

/// Enqueues gate+up with the activation: x -> h. `ctas`: as given to LaunchMakeTiles. 0 or a
/// cudaError_t.
int LaunchGateUp(const GroupGemmArgs& args, int ctas, CUstream_st* stream);
/// Enqueues down: h -> out.
int LaunchDown(const GroupGemmArgs& args, int ctas, CUstream_st* stream);

/// CTAs that run at a time on the current device, at most kMaxCtas. 0 on an error.
int GroupGemmCtas();

/// How a matrix is cut: warps of a CTA that share its K.
constexpr int kGemmWarpsLog2 = 4;
constexpr int kGemmWarps = 1 << kGemmWarpsLog2;
MOERT_HOST_DEVICE constexpr int KSlicesLog2(int k64s) { return k64s >= 16 ? 2 : k64s >= 8 ? 1 : 0; }

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_GROUP_GEMM_H_
