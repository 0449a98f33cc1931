#include <cuda_runtime.h>

#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/multiply.cuh"
#include "kernels/cuda/primitives/weight_stream.cuh"

namespace moert::cuda {
namespace {

constexpr int kThreads = kGemmWarps * 32;
constexpr int kPieceFloats = 128;  // a 16 x 8 accumulator
/// Each warp's sums of an item and 8 tokens. Two, so that one barrier an item is enough; one where
/// shared memory is short.
MOERT_HOST_DEVICE constexpr int ReduceBuffers(int stages) { return stages > 2 ? 2 : 1; }
constexpr int kReduceFloats = 2 * kPieceFloats;
MOERT_HOST_DEVICE constexpr int SharedBytes(int stages) {
  return kGemmWarps * (stages * kStageBytes + static_cast<int>(sizeof(WarpState)) +
                       ReduceBuffers(stages) * kReduceFloats * 4);
}

/// The row of activations that is operand of a slot.
__device__ __forceinline__ const uint16_t* OperandRow(const GroupGemmArgs& args, int slot) {
  if (args.product == 1) return args.h + slot * args.h_stride;
  const int token = slot < args.pairs ? slot / args.top_k : slot - args.pairs;
  return args.x + token * args.x_stride;
}

/// Waits for the warps that share K with this one.
__device__ __forceinline__ void GroupBarrier(int slices_log2, int warp) {
  if (slices_log2 == 0) {
    __syncwarp();
  } else {
    // Barriers 8 to 15 are of two warps, 4 to 7 of four; 0 is the CTA's.
    const int id = (kGemmWarps + warp) >> slices_log2;
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(32 << slices_log2) : "memory");
  }
}

__device__ __noinline__ float ActivateOther(int kind, float v) { return Activate(kind, v); }

/// Sums the group's parts of an item in the order of K and stores the results. slots: of the column
/// of every 8 tokens that falls to this thread, -1: none.
template <int kTokens8>
__device__ __forceinline__ void Finish(const GroupGemmArgs& args, int row_blocks, int slices_log2,
                                       int item, const int (&slots)[kTokens8], float* reduce,
                                       int& buffer, const float (&acc)[2][kTokens8][4]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int threads = 32 << slices_log2;
  const int slices = 1 << slices_log2;
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    float* base = reduce + buffer * (kGemmWarps * kReduceFloats);
    if (ReduceBuffers(kStages) == 2) {
      buffer ^= 1;
    } else {
      GroupBarrier(slices_log2, warp);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float4*>(base + warp * kReduceFloats + r * kPieceFloats + lane * 4) =
          make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]);
    }
    GroupBarrier(slices_log2, warp);
    const int slot = slots[n];
    if (slot < 0) continue;
    const float* group = base + (warp >> slices_log2 << slices_log2) * kReduceFloats;
    const int elements = args.product == 0 ? kPieceFloats : 2 * kPieceFloats;
#pragma unroll 1
    for (int e = threadIdx.x & (threads - 1); e < elements; e += threads) {
      const int row = ((e >> 4) & 7) + 8 * ((e >> 1) & 1);
      float sum = group[e];
      // Product 0: an element is a channel of h, gate and up in one thread.
      float up = group[e % kPieceFloats + kPieceFloats];
#pragma unroll 1
      for (int s = 1; s < slices; ++s) {
        sum += group[e + s * kReduceFloats];
        up += group[e % kPieceFloats + kPieceFloats + s * kReduceFloats];
      }
      if (args.product == 0) {
        const float active =
            args.activation == 0 ? Activate(0, sum) : ActivateOther(args.activation, sum);
        uint16_t* h = args.h + slot * args.h_stride;
        h[PackedIndex(item * 16 + row)] = ToBf16(active * up);
        if (item + 1 == row_blocks) {
          // The padding up to whole pieces of 64 is an operand of `down` too.
#pragma unroll 1
          for (int b = row_blocks; b % 4 != 0; ++b) h[PackedIndex(b * 16 + row)] = 0;
        }
      } else {
        const int channel = (2 * item + e / kPieceFloats) * 16 + row;
        if (channel < args.hidden) args.out[slot * args.out_stride + channel] = sum;
      }
    }
  }
}

/// A warp's ring: the stage that is multiplied next, as a shared address.
struct Ring {
  uint32_t begin;
  uint32_t at;
  __device__ __forceinline__ uint32_t end() const { return begin + kStages * kStageBytes; }
  /// The stage multiplied last, which is filled next.
  __device__ __forceinline__ uint32_t last() const {
    return (at == begin ? end() : at) - kStageBytes;
  }
  __device__ __forceinline__ void Advance() {
    at += kStageBytes;
    if (at == end()) at = begin;
  }
};

/// The items of one tile that fall to this warp's group.
template <Packing kPacking, int kTokens8>
__device__ __forceinline__ void RunItems(const GroupGemmArgs& args, const Tile& tile,
                                         const TileMatrix& m, const ItemRange& range,
                                         WeightStream& stream, Ring& ring, float* reduce,
                                         int& buffer) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int slices_log2 = KSlicesLog2(m.k64s);
  const Slice slice = SliceOf(m.k64s, slices_log2, warp & ((1 << slices_log2) - 1));
  const int row_blocks = m.row_blocks;
  const bool group_of_64 = m.group_k64s == 1;
  const Decoding<kPacking> decoding(m.zero_point, m.zero_distance != 0);
  constexpr int kChunkK = kPacking == Packing::kBf16 ? 32 : kPacking == Packing::kW8 ? 64 : 128;
  const int k_end = (slice.end - slice.begin) * 64;
  const uint16_t* rows[kTokens8];
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    const int column = min(n * 8 + (lane >> 2), tile.count - 1);
    rows[n] =
        OperandRow(args, tile.slots[column]) + slice.begin * 64 + LaneUnits<kPacking>(lane & 3);
  }
  int slots[kTokens8];
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    const int column = n * 8 + 2 * ((lane >> 2) & 3) + (lane & 1);
    slots[n] = column < tile.count ? tile.slots[column] : -1;
  }
  // Activations are one step ahead of the weights; behind the last step comes the first again, of
  // the next item.
  Operands<kPacking, kTokens8> x;
  x.Load(rows, 0, k_end > 0);
#pragma unroll 1
  for (int item = range.first; item < range.end; item += 1 << range.groups_log2) {
    float acc[2][kTokens8][4] = {};
#pragma unroll 1
    for (int k = 0; k < k_end; k += kChunkK) {
      CopyAsyncWait<kStages - 2>();
      __syncwarp();  // the stage is there for all lanes, and nobody reads the last one any more
      stream.Issue(ring.last());
      const uint32_t at = ring.at;
      ring.Advance();
      const int next = k + kChunkK < k_end ? k + kChunkK : 0;
      Operands<kPacking, kTokens8> ahead;
      if constexpr (kPacking == Packing::kBf16) {
        ahead.Load(rows, next, true);
        MultiplyBf16<kTokens8>(at, lane, x, acc);
        x = ahead;
      } else if constexpr (kPacking == Packing::kW8) {
        GroupSums<kPacking, kTokens8> sums;
        sums.Clear();
        ahead.Load(rows, next, true);
        MultiplyK64<kPacking, kTokens8, 0>(at, lane, x, sums);
        sums.AddTo(acc, at + 2 * kBlockBytes, lane, decoding);
        x = ahead;
      } else {
        // In a last half chunk the second piece is multiplied with zeros.
        const bool both = k + 64 < k_end;
        GroupSums<kPacking, kTokens8> sums;
        sums.Clear();
        ahead.Load(rows, k + 64, both);
        MultiplyK64<kPacking, kTokens8, 0>(at, lane, x, sums);
        if (group_of_64) {
          sums.AddTo(acc, at + 2 * kBlockBytes, lane, decoding);
          sums.Clear();
        }
        x.Load(rows, next, true);
        MultiplyK64<kPacking, kTokens8, 1>(at, lane, ahead, sums);
        if (both || !group_of_64) {
          sums.AddTo(acc, at + 2 * kBlockBytes + (group_of_64 ? 128 : 0), lane, decoding);
        }
      }
    }
    Finish<kTokens8>(args, row_blocks, slices_log2, item, slots, reduce, buffer, acc);
  }
}

template <int kTokens8>
__device__ __forceinline__ void RunTile(const GroupGemmArgs& args, const Tile& tile,
                                        const TileMatrix& m, const ItemRange& range,
                                        WeightStream& stream, Ring& ring, float* reduce,
                                        int& buffer) {
  switch (m.packing) {
    case Packing::kBf16:
      return RunItems<Packing::kBf16, kTokens8>(args, tile, m, range, stream, ring, reduce, buffer);
    case Packing::kW8:
      return RunItems<Packing::kW8, kTokens8>(args, tile, m, range, stream, ring, reduce, buffer);
    case Packing::kW4:
      return RunItems<Packing::kW4, kTokens8>(args, tile, m, range, stream, ring, reduce, buffer);
    case Packing::kW3:
      return RunItems<Packing::kW3, kTokens8>(args, tile, m, range, stream, ring, reduce, buffer);
    case Packing::kW2:
      return RunItems<Packing::kW2, kTokens8>(args, tile, m, range, stream, ring, reduce, buffer);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    GroupGemmKernel(const __grid_constant__ GroupGemmArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  auto* states = reinterpret_cast<WarpState*>(shared + kGemmWarps * kStages * kStageBytes);
  auto* reduce = reinterpret_cast<float*>(states + kGemmWarps);
  const uint32_t begin = SharedAddress(shared + warp * kStages * kStageBytes);
  Ring ring{begin, begin};

  // Down begins while gate and up end: tiles and weights are there, since gate and up waited for
  // them before they let it begin; h is not.
  if (args.product == 0) {
    WaitForPrevious();
    LetNextBegin();
  }
  TileWalk walk;
  walk.at = args.table.starts[args.product][blockIdx.x];
  walk.end = args.table.starts[args.product][blockIdx.x + 1];
  walk.turn = 0;
  if (walk.done()) {
    WaitForPrevious();
    return;
  }
  WeightStream stream(args, &states[warp]);
  if (lane == 0) {
    states[warp].walk = walk;
    states[warp].found = states[warp].opened = states[warp].item = 0;
  }
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) {
    stream.Find();
    stream.Issue(begin + i * kStageBytes);
  }
  stream.Find();
  if (args.product == 1) {
    WaitForPrevious();
    LetNextBegin();
  }
  int buffer = 0;
  int slices_log2 = -1;
  while (!walk.done()) {
    const Tile& tile = args.table.tiles[walk.at.tile];
    const TileMatrix m = tile.matrix[args.product];
    // Groups of another size use the reduction buffers of these.
    if (slices_log2 >= 0 && slices_log2 != KSlicesLog2(m.k64s)) __syncthreads();
    slices_log2 = KSlicesLog2(m.k64s);
    const ItemRange range = walk.Items(m, warp);
    if (range.first < range.end) {
      if (tile.count <= 8) {
        RunTile<1>(args, tile, m, range, stream, ring, reduce, buffer);
      } else {
        RunTile<2>(args, tile, m, range, stream, ring, reduce, buffer);
      }
      stream.Find();
    }
    walk.Next(range);
  }
  CopyAsyncWait<0>();
}

/// Shared memory of a CTA on the current device; 0 on an error.
int DeviceSharedBytes() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return 0;
  }
  return SharedBytes(StagesOf(major * 10 + minor));
}

int Launch(GroupGemmArgs args, int product, int ctas, cudaStream_t stream) {
  const int bytes = DeviceSharedBytes();
  cudaError_t error =
      cudaFuncSetAttribute(GroupGemmKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  args.product = product;
  return LaunchEarly(GroupGemmKernel, ctas, kThreads, bytes, stream, args);
}

}  // namespace

int LaunchGateUp(const GroupGemmArgs& args, int ctas, CUstream_st* stream) {
  return Launch(args, 0, ctas, stream);
}
int LaunchDown(const GroupGemmArgs& args, int ctas, CUstream_st* stream) {
  return Launch(args, 1, ctas, stream);
}

int GroupGemmCtas() {
  int device = 0, processors = 0, per_processor = 0;
  const int bytes = DeviceSharedBytes();
  if (bytes == 0 || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaFuncSetAttribute(GroupGemmKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
          cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, GroupGemmKernel, kThreads,
                                                    bytes) != cudaSuccess) {
    return 0;
  }
  const int ctas = processors * per_processor;
  return ctas < kMaxCtas ? ctas : kMaxCtas;
}

}  // namespace moert::cuda
