#include <cuda_runtime.h>

#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/primitives/epilogue.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/multiply.cuh"

namespace moert::cuda {
namespace {

constexpr int kThreads = kGemmWarps * 32;
constexpr int kSharedBytes = kReduceBuffers * kGemmWarps * kReduceFloats * 4;

/// What a share is worked on with.
struct Share {
  const GroupGemmArgs& args;
  const int product;
  const bool waits;  // for the other product's h
  float* const reduce;
  int buffer;
};

/// The row of activations that is operand of a slot.
__device__ __forceinline__ const uint8_t* OperandRow(const Share& share, int operand, int slot) {
  const GroupGemmArgs& args = share.args;
  if (share.product == 1) return args.h + slot * args.h_stride;
  const int token = slot < args.pairs ? slot / args.top_k : slot - args.pairs;
  return args.x[operand] + token * args.x_stride;
}

/// Tells who waits for the tile's h that this warp has done `count` items of it.
__device__ __forceinline__ void Announce(const Share& share, int tile, int count) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(share.args.table.ready + tile),
                 "r"(count)
                 : "memory");
  }
}

/// Until every warp has done its items of gate and up.
__device__ __forceinline__ void WaitForH(const Share& share, int tile, const TileMatrix& gate) {
  if (threadIdx.x % 32 == 0) {
    const int all = gate.items << KSlicesLog2(gate.k64s);
    int done = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(done)
                   : "l"(share.args.table.ready + tile)
                   : "memory");
      if (done >= all) break;
      __nanosleep(40);
    }
  }
  __syncwarp();
}

/// The items of one tile that fall to this warp's group.
template <Packing kPacking, int kTokens8>
__device__ __forceinline__ void RunItems(Share& share, int tile_index, const Tile& tile,
                                         const TileMatrix& m, const ItemRange& range) {
  using Shape = UnitShape<kPacking>;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int slices_log2 = KSlicesLog2(m.k64s);
  const Slice slice = SliceOf(m.k64s, slices_log2, warp & ((1 << slices_log2) - 1));
  const int units = (slice.end - slice.begin + Shape::kK64s - 1) / Shape::kK64s;
  const int row_blocks = m.row_blocks;
  const bool plain_h = tile.matrix[1].operand == 0;
  const Decoding<kPacking> decoding(m.zero_point);

  WeightCursor<kPacking> cursor(m, slice, share.product, lane);
  ItemProduct<kPacking, kTokens8> product;
  cursor.Open(range.first);
  product.Fill(cursor);
  if (share.waits) WaitForH(share, tile_index, tile.matrix[0]);

  const uint8_t* rows[kTokens8];
  int slots[kTokens8];
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    const int column = min(n * 8 + (lane >> 2), tile.count - 1);
    rows[n] = OperandRow(share, m.operand, tile.slots[column]) +
              (slice.begin * 64 + LaneChannels<kPacking>(lane)) * Shape::kElement;
    const int stored = n * 8 + 2 * ((lane >> 2) & 3) + (lane & 1);
    slots[n] = stored < tile.count ? tile.slots[stored] : -1;
  }
  constexpr bool kScaledRows = Shape::kInt || kPacking == Packing::kF8;
  const uint8_t* scaled[kTokens8][2];
  if constexpr (kScaledRows) {
    const int first = (m.k64s + 1) / 2 * 256 + slice.begin / 2 * 4;
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = min(n * 8 + 2 * (lane & 3) + c, tile.count - 1);
        scaled[n][c] = OperandRow(share, m.operand, tile.slots[column]) + first;
      }
    }
  }
  float x_scales[kTokens8][2];
  const auto scales_of = [&](int unit) {
    if constexpr (kScaledRows) {
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          x_scales[n][c] = *reinterpret_cast<const float*>(scaled[n][c] + unit * 4);
        }
      }
    }
  };

#pragma unroll 1
  for (int item = range.first; item < range.end; item += 1 << range.groups_log2) {
    product.Clear();
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      if (unit + 1 < units) {
        cursor.Advance();
      } else {
        const int next = item + (1 << range.groups_log2);
        if (next < range.end) {
          cursor.Open(next);
        } else {
          cursor.left = 0;
        }
      }
      if constexpr (kPacking == Packing::kW4A8) scales_of(unit);
      const uint8_t* at[kTokens8];
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
        at[n] = rows[n] + unit * (Shape::kK64s * 64 * Shape::kElement);
      }
      product.Unit(at, cursor, decoding, x_scales);
    }
    if constexpr (kPacking == Packing::kF8 || kPacking == Packing::kW8A8) {
      scales_of(0);
      product.EndItem(cursor, x_scales);
    }
    EndItem<kTokens8>(share.args, share.product, row_blocks, plain_h, slices_log2, item, slots,
                      share.reduce, share.buffer, product.acc);
  }
}

template <Packing kPacking>
__device__ __forceinline__ void RunPacking(Share& share, int index, const Tile& tile,
                                           const TileMatrix& m, const ItemRange& range) {
  if (tile.count <= 8) {
    RunItems<kPacking, 1>(share, index, tile, m, range);
  } else {
    RunItems<kPacking, 2>(share, index, tile, m, range);
  }
}

__device__ __forceinline__ void RunTile(Share& share, int index, const Tile& tile,
                                        const TileMatrix& m, const ItemRange& range) {
  switch (m.packing) {
    case Packing::kBf16:
      return RunPacking<Packing::kBf16>(share, index, tile, m, range);
    case Packing::kW8:
      return RunPacking<Packing::kW8>(share, index, tile, m, range);
    case Packing::kW4:
      return RunPacking<Packing::kW4>(share, index, tile, m, range);
    case Packing::kW3:
      return RunPacking<Packing::kW3>(share, index, tile, m, range);
    case Packing::kW2:
      return RunPacking<Packing::kW2>(share, index, tile, m, range);
    case Packing::kF8:
      return RunPacking<Packing::kF8>(share, index, tile, m, range);
    case Packing::kW8A8:
      return RunPacking<Packing::kW8A8>(share, index, tile, m, range);
    case Packing::kW4A8:
      return RunPacking<Packing::kW4A8>(share, index, tile, m, range);
  }
}

__device__ __forceinline__ void RunShare(Share& share, TileWalk walk) {
  const int warp = threadIdx.x / 32;
  int slices_log2 = -1;
  while (!walk.done()) {
    const int index = walk.at.tile;
    const Tile& tile = share.args.table.tiles[index];
    const TileMatrix& m = tile.matrix[share.product];
    // Groups of another size use the reduction buffers of these.
    if (slices_log2 >= 0 && slices_log2 != KSlicesLog2(m.k64s)) __syncthreads();
    slices_log2 = KSlicesLog2(m.k64s);
    const ItemRange range = walk.Items(m, warp);
    if (!range.empty()) {
      RunTile(share, index, tile, m, range);
      if (share.product == 0 && share.args.last == 1) Announce(share, index, range.count());
    }
    walk.Next(range);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    GroupGemmKernel(const __grid_constant__ GroupGemmArgs args) {
  extern __shared__ __align__(128) float reduce[];
  __shared__ int taken;
  WaitForPrevious();
  LetNextBegin();
  const bool both = args.first != args.last;
  int ticket = blockIdx.x;
  while (true) {
    if (both) {
      __syncthreads();
      if (threadIdx.x == 0) taken = atomicAdd(args.table.ticket, 1);
      __syncthreads();
      ticket = taken;
      if (ticket >= 2 * args.ctas) return;
    }
    const int product = ticket < args.ctas ? args.first : args.last;
    const int at = ticket < args.ctas ? ticket : ticket - args.ctas;
    Share share{args, product, both && product == 1, reduce, 0};
    const Position* starts = args.table.starts[product];
    RunShare(share, {starts[at], starts[at + 1], 0});
    if (!both) return;
  }
}

int Launch(GroupGemmArgs args, int first, int last, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      GroupGemmKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  args.first = first;
  args.last = last;
  return LaunchEarly(GroupGemmKernel, args.ctas, kThreads, kSharedBytes, stream, args);
}

}  // namespace

int LaunchProducts(const GroupGemmArgs& args, CUstream_st* stream) {
  return Launch(args, 0, 1, stream);
}
int LaunchGateUp(const GroupGemmArgs& args, CUstream_st* stream) {
  return Launch(args, 0, 0, stream);
}
int LaunchDown(const GroupGemmArgs& args, CUstream_st* stream) {
  return Launch(args, 1, 1, stream);
}

int GroupGemmCtas() {
  int device = 0, processors = 0, per_processor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaFuncSetAttribute(GroupGemmKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedBytes) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, GroupGemmKernel, kThreads,
                                                    kSharedBytes) != cudaSuccess) {
    return 0;
  }
  const int ctas = processors * per_processor;
  return ctas < kMaxCtas ? ctas : kMaxCtas;
}

}  // namespace moert::cuda
