// The end of an item: the parts of K of a group of warps are summed in the order of K, and the
// results stored.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_EPILOGUE_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_EPILOGUE_CUH_

#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/tile_walk.cuh"

namespace moert::cuda {

constexpr int kPieceFloats = 128;  // a 16 x 8 accumulator
/// Each warp's sums of an item. Two of them, so that one barrier an item is enough.
constexpr int kReduceFloats = 2 * (kTileTokens / 8) * kPieceFloats;
constexpr int kReduceBuffers = 2;

__device__ __noinline__ float ActivateOther(int kind, float v) { return Activate(kind, v); }

/// slots: of the column of every 8 tokens that falls to this thread, -1: none.
template <int kTokens8>
__device__ __forceinline__ void EndItem(const GroupGemmArgs& args, int product, int row_blocks,
                                        bool plain_h, int slices_log2, int item,
                                        const int (&slots)[kTokens8], float* reduce, int& buffer,
                                        const float (&acc)[2][kTokens8][4]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int threads = 32 << slices_log2;
  const int slices = 1 << slices_log2;
  float* base = reduce + buffer * (kGemmWarps * kReduceFloats);
  buffer ^= 1;
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float4*>(base + warp * kReduceFloats + (2 * n + r) * kPieceFloats +
                                 lane * 4) =
          make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]);
    }
  }
  GroupBarrier(slices_log2, warp);
  const float* group = base + (warp >> slices_log2 << slices_log2) * kReduceFloats;
  const int elements = product == 0 ? kPieceFloats : 2 * kPieceFloats;
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    const int slot = slots[n];
    if (slot < 0) continue;
    const float* part = group + 2 * n * kPieceFloats;
#pragma unroll 1
    for (int e = threadIdx.x & (threads - 1); e < elements; e += threads) {
      const int row = ((e >> 4) & 7) + 8 * ((e >> 1) & 1);
      float sum = part[e];
      if (product == 0) {
        // An element is a channel of h, gate and up in one thread.
        float up = part[e + kPieceFloats];
#pragma unroll 1
        for (int s = 1; s < slices; ++s) {
          sum += part[e + s * kReduceFloats];
          up += part[e + kPieceFloats + s * kReduceFloats];
        }
        const float active =
            args.activation == 0 ? Activate(0, sum) : ActivateOther(args.activation, sum);
        if (plain_h) {
          auto* h = reinterpret_cast<uint16_t*>(args.h + slot * args.h_stride);
          h[PackedIndex(item * 16 + row)] = ToBf16(active * up);
          if (item + 1 == row_blocks) {
            // The padding up to whole pieces of 128 is an operand of `down` too.
#pragma unroll 1
            for (int b = row_blocks; b % 8 != 0; ++b) h[PackedIndex(b * 16 + row)] = 0;
          }
        } else {
          args.wide_h[slot * args.wide_h_stride + item * 16 + row] = active * up;
        }
      } else {
#pragma unroll 1
        for (int s = 1; s < slices; ++s) sum += part[e + s * kReduceFloats];
        const int channel = (2 * item + e / kPieceFloats) * 16 + row;
        if (channel < args.hidden) args.out[slot * args.out_stride + channel] = sum;
      }
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_EPILOGUE_CUH_
