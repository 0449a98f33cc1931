// Family D: the memory-bound grouped GEMM of a wave's tiles (mma.sync, sm_80 and later).
//
// An item is a pair of row blocks of one tile: the gate and the up block of 16 channels, or two
// blocks of down. The warps of a CTA form groups that split K; each group takes every n-th item of
// the CTA's share, so a group never waits for another. Weights stream once from device memory:
// 16-bit weights, and those of 8-bit products, into registers a unit ahead of the products that use
// them; weights of fewer bits through shared memory, several units ahead (few/weight_ring.cuh).
//
// Both products are one launch. Shares are taken by ticket, all of gate and up before the first of
// `down` is worked on; the first read of a tile's h waits until all of it was written. That cannot
// deadlock: the shares waited for were taken by CTAs that run, and these wait for nothing.
//
// Which CTA or group computes an item changes nothing in its arithmetic: the split of K depends on
// the matrix alone, and sums run in a fixed order (design rule 6).
#ifndef MOERT_KERNELS_CUDA_FEW_GROUP_GEMM_H_
#define MOERT_KERNELS_CUDA_FEW_GROUP_GEMM_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// All pointers are device memory. Activations are packed rows (rows.h); strides in bytes.
struct GroupGemmArgs {
  TileTable table;
  const uint8_t* x[kOperands] = {};  // [tokens] rows of x_stride, by operand; null: not in use
  uint8_t* h = nullptr;              // [slots] rows of h_stride: act(gate x) * (up x)
  float* wide_h = nullptr;           // [slots, wide_h_stride] floats: h where `down` needs another
                                     // operand than plain bf16
  float* out = nullptr;              // [slots, out_stride] floats: down h
  uint16_t* narrow_out = nullptr;    // if not null, instead of it: the same as bf16
  int64_t x_stride = 0;
  int64_t h_stride = 0;
  int64_t wide_h_stride = 0;
  int64_t out_stride = 0;
  int32_t pairs = 0;   // slots below this are (token, j): token * top_k + j
  int32_t top_k = 1;   // slots from `pairs` on are one a token: the shared expert. `pairs` 0:
                       // every slot has a row of x of its own
  int32_t hidden = 0;  // channels of out that are written
  int32_t biased = 0;  // whether some expert has biases
  int32_t shares = 0;  // as given to LaunchMakeTiles
  DeviceActivation activation;
  // Set by the launch: its products, and 2^32 / top_k.
  int32_t first = 0;
  int32_t last = 0;
  uint64_t top_k_inverse = 0;
};

/// Enqueues gate, up, down: x -> h -> out, once for each LaunchMakeTiles. Returns 0 or a
/// cudaError_t.
int LaunchProducts(const GroupGemmArgs& args, CUstream_st* stream);
/// The same in two, for formats whose h is packed in between (LaunchPackHidden, rows.h).
int LaunchGateUp(const GroupGemmArgs& args, CUstream_st* stream);
int LaunchDown(const GroupGemmArgs& args, CUstream_st* stream);

/// Shares into which a wave's work is cut on the current device, at most kMaxShares. 0 on an error.
int GroupGemmShares();

/// How a matrix is cut: warps of a CTA that share its K.
constexpr int kGemmWarpsLog2 = 3;
constexpr int kGemmWarps = 1 << kGemmWarpsLog2;
MOERT_HOST_DEVICE constexpr int KSlicesLog2(int k64s) { return k64s >= 16 ? 2 : k64s >= 8 ? 1 : 0; }

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_GROUP_GEMM_H_
