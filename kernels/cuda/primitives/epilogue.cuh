// The end of an item: sums the parts of K of a group of warps in the order of K, and stores the
// results.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_EPILOGUE_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_EPILOGUE_CUH_

#include "kernels/cuda/few/tile_walk.cuh"
#include "kernels/cuda/primitives/activation.cuh"

namespace moert::cuda {

constexpr int kPieceFloats = 128;  // a 16 x 8 accumulator
/// Floats of a warp's sums of an item of 8 tokens. There are two buffers, so that one barrier per
/// item is enough; items of 16 tokens use both.
constexpr int kReduceFloats = 2 * kPieceFloats;
constexpr int kReduceBuffers = kTileTokens / 8;
constexpr int kBufferFloats = kGemmWarps * kReduceFloats;  // floats of one

static __device__ __noinline__ float ActivateOther(const DeviceActivation& activation, float gate,
                                                   float up) {
  return Activate(activation, gate, up);
}

/// The sum over a group's parts of K, in order (SumOfParts). All parts are read before the first is
/// added.
template <typename T>
__device__ __forceinline__ T Part(const float* parts, int slice) {
  return *reinterpret_cast<const T*>(parts + slice * kReduceFloats);
}
__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
template <typename T>
__device__ __forceinline__ T SumOfParts(const float* parts, int slices_log2) {
  const T first = Part<T>(parts, 0);
  if (slices_log2 == 0) return first;
  const T second = Part<T>(parts, 1);
  if (slices_log2 == 1) return first + second;
  const T third = Part<T>(parts, 2), fourth = Part<T>(parts, 3);
  return first + second + third + fourth;
}

/// Slots of the columns of every 8 tokens whose results this thread stores, -1: none.
template <int kTokens8>
struct StoredSlots {
  int slots[kTokens8][2];

  /// tile: has Slot(column) and count.
  template <typename T>
  __device__ __forceinline__ StoredSlots(const T& tile, int product, int lane) {
    // Gate and up: one element a thread, `down`: those of an accumulator; see EndItem.
    const int column = product == 0 ? 2 * ((lane >> 2) & 3) + (lane & 1) : 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int at = n * 8 + column + c;
        const int slot = tile.Slot(at);
        slots[n][c] = at < tile.count && (product == 1 || c == 0) ? slot : -1;
      }
    }
  }
};

/// Channels `channel` and `channel` + 8 of a slot.
__device__ __forceinline__ void StoreNarrow(const GroupGemmArgs& args, int slot, int channel,
                                            float first, float second) {
  uint16_t* out = args.narrow_out + slot * args.out_stride + channel;
  if (channel < args.hidden) out[0] = ToBf16(first);
  if (channel + 8 < args.hidden) out[8] = ToBf16(second);
}

/// Stores results of `down`: the four values of a lane's accumulator, in rows g and g + 8 of two
/// columns. second_slot -1: of one column.
__device__ __forceinline__ void StoreDown(const GroupGemmArgs& args, int channel, int slot,
                                          int second_slot, const float4& sum) {
  if (args.narrow_out != nullptr) {
    StoreNarrow(args, slot, channel, sum.x, sum.z);
    if (second_slot >= 0) StoreNarrow(args, second_slot, channel, sum.y, sum.w);
    return;
  }
  float* out = args.out + slot * args.out_stride + channel;
  float* second = args.out + second_slot * args.out_stride + channel;
  if (channel < args.hidden) {
    out[0] = sum.x;
    if (second_slot >= 0) second[0] = sum.y;
  }
  if (channel + 8 < args.hidden) {
    out[8] = sum.z;
    if (second_slot >= 0) second[8] = sum.w;
  }
}

/// Stores a channel of h. It is rounded to bf16 also if it is quantized or transformed later.
__device__ __forceinline__ void StoreH(const GroupGemmArgs& args, int item, int row, int row_blocks,
                                       bool plain_h, int slot, float value) {
  if (!plain_h) {
    args.wide_h[slot * args.wide_h_stride + item * 16 + row] =
        __bfloat162float(__float2bfloat16_rn(value));
    return;
  }
  auto* h = reinterpret_cast<uint16_t*>(args.h + slot * args.h_stride);
  h[PackedIndex(item * 16 + row)] = ToBf16(value);
  if (item + 1 != row_blocks) return;
    // The padding up to whole pieces of 128 is an operand of `down` too.
#pragma unroll 1
  for (int b = row_blocks; b % 8 != 0; ++b) h[PackedIndex(b * 16 + row)] = 0;
}

/// Adds the biases of rows `channel` and `channel` + 8 to what StoreDown takes.
__device__ __forceinline__ void AddBiases(const float* biases, int channel, int rows, float4& sum) {
  if (channel >= rows) return;
  const float first = biases[channel], second = biases[channel + 8];
  sum.x += first;
  sum.y += first;
  sum.z += second;
  sum.w += second;
}

/// Stores a warp's sums of an item.
template <int kTokens8>
__device__ __forceinline__ void StoreParts(float* reduce, int warp, int lane,
                                           const float (&acc)[2][kTokens8][4]) {
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float4*>(reduce + n * kBufferFloats + warp * kReduceFloats +
                                 r * kPieceFloats + lane * 4) =
          make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]);
    }
  }
}

/// biases_of(): of the tile's matrix, or null.
template <int kTokens8, typename BiasesOf>
__device__ __forceinline__ void EndItem(const GroupGemmArgs& args, int product, int row_blocks,
                                        bool plain_h, int slices_log2, int item,
                                        const StoredSlots<kTokens8>& stored, float* reduce,
                                        int& buffer, const float (&acc)[2][kTokens8][4],
                                        const BiasesOf& biases_of) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int threads = 32 << slices_log2;
  if (kTokens8 == kReduceBuffers) {
    GroupBarrier(slices_log2, warp);  // all have read the earlier sums
  } else {
    reduce += buffer * kBufferFloats;
    buffer ^= 1;
  }
  StoreParts(reduce, warp, lane, acc);
  GroupBarrier(slices_log2, warp);
  const float* group = reduce + (warp >> slices_log2 << slices_log2) * kReduceFloats;
  const int first = threadIdx.x & (threads - 1);
  // Code for biases, which plain layers lack, is kept off their path.
  const float* const biases = __builtin_expect(args.biased != 0, 0) ? biases_of() : nullptr;
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    const int slot = stored.slots[n][0];
    if (slot < 0) continue;
    const float* part = group + n * kBufferFloats;
    if (product == 1) {
      const int second_slot = stored.slots[n][1];
#pragma unroll 1
      for (int e = first; e < 2 * kPieceFloats / 4; e += threads) {
        float4 sum = SumOfParts<float4>(part + e * 4, slices_log2);
        const int channel = (2 * item + e / 32) * 16 + (e % 32) / 4;
        if (__builtin_expect(biases != nullptr, 0)) {
          AddBiases(biases, channel, row_blocks * 16, sum);
        }
        StoreDown(args, channel, slot, second_slot, sum);
      }
      continue;
    }
#pragma unroll 1
    for (int e = first; e < kPieceFloats; e += threads) {
      // A channel of h, gate and up in one thread.
      const int row = ((e >> 4) & 7) + 8 * ((e >> 1) & 1);
      float gate = SumOfParts<float>(part + e, slices_log2);
      float up = SumOfParts<float>(part + e + kPieceFloats, slices_log2);
      if (__builtin_expect(biases != nullptr, 0)) {
        const float* const of_row = biases + item * 16 + row;
        gate += of_row[0];
        if (args.activation.gated != 0) up += of_row[SecondBias(row_blocks) / 4];
      }
      const float active =
          args.activation.PlainSilu() ? Silu(gate) * up : ActivateOther(args.activation, gate, up);
      StoreH(args, item, row, row_blocks, plain_h, slot, active);
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_EPILOGUE_CUH_
