// The work of a CTA on its shares of the grouped products of family D (group_gemm.h), for any
// source of tiles and shares.
#ifndef MOERT_KERNELS_CUDA_FEW_GROUP_SHARE_CUH_
#define MOERT_KERNELS_CUDA_FEW_GROUP_SHARE_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/few/multiply.cuh"
#include "kernels/cuda/few/ring_product.cuh"
#include "kernels/cuda/primitives/epilogue.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/mbarrier.cuh"
#include "kernels/cuda/primitives/prefetch_l1.cuh"

namespace moert::cuda {

constexpr int kGemmThreads = kGemmWarps * 32;
/// CTAs per multiprocessor, where shared memory has room for them: while one ends a share and
/// begins the next, the other multiplies.
constexpr int kGemmCtas = 2;
constexpr int kReduceBytes = kReduceBuffers * kGemmWarps * kReduceFloats * 4;
/// The last kGemmWarps * kRingBytes are not used before a share begins.
constexpr int kGemmSharedBytes = kReduceBytes + kGemmWarps * kRingBytes;
static_assert(2 * kScaleBytes <= kRingBytes);
static_assert(kGemmSharedBytes + (8 << 10) <= kLeastShared);  // 8 KiB are left for a kernel's own

/// 2^32 / top_k, rounded up: exact for products of slots and top_k below 2^32.
constexpr uint64_t TopKInverse(int top_k) {
  return ((uint64_t{1} << 32) + static_cast<uint64_t>(top_k) - 1) / static_cast<uint64_t>(top_k);
}

/// A warp's state while it works on shares, one after the other.
struct Share {
  const GroupGemmArgs& args;
  float* const reduce;
  const uint8_t* const ring;  // kRingBytes of this warp
  int product = 0;
  bool waits = false;  // for the other product's h
  int slices_log2 = 0;
  int buffer = 0;
};

/// A tile's data, read together and before anything else: a single later read would take as long as
/// all of them.
struct ResolvedTile {
  int index;
  TileMatrix m;
  int slot;  // of column `lane`, or of the last one
  int count;
  int h_items;  // of gate and up
  bool plain_h;

  __device__ __forceinline__ int Slot(int column) const {
    return __shfl_sync(~0u, slot, column);  // a column beyond the last has the last one's slot
  }
};

/// The row of activations that a slot is multiplied with.
__device__ __forceinline__ const uint8_t* OperandRow(const Share& share, int operand, int slot) {
  const GroupGemmArgs& args = share.args;
  if (share.product == 1) return args.h + slot * args.h_stride;
  const int token =
      slot < args.pairs ? static_cast<int>(slot * args.top_k_inverse >> 32) : slot - args.pairs;
  return args.x[operand] + token * args.x_stride;
}

/// Announces to the waiters for the tile's h that this warp's group has done `count` items of it.
__device__ __forceinline__ void Announce(const Share& share, int tile, int count) {
  const int warp = threadIdx.x / 32;
  GroupBarrier(share.slices_log2, warp);  // the release covers the group's other warps, too
  if ((threadIdx.x & ((32 << share.slices_log2) - 1)) == 0) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(share.args.table.ready + tile),
                 "r"(count)
                 : "memory");
  }
}

/// Waits until every group has done its items of gate and up.
__device__ __forceinline__ void WaitForH(const Share& share, const ResolvedTile& tile) {
  if (threadIdx.x % 32 == 0) {
    int done = 0;
    while (true) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(done)
                   : "l"(share.args.table.ready + tile.index)
                   : "memory");
      if (done >= tile.h_items) break;
      __nanosleep(40);
    }
  }
  __syncwarp();
}

/// Scales of the rows of activations of every 8 columns that a lane's accumulators belong to, where
/// the packing has some.
template <Packing kPacking, int kTokens8>
struct ColumnScales {
  static constexpr bool kAny = UnitShape<kPacking>::kInt || kPacking == Packing::kF8;
  const uint8_t* rows[kTokens8][2];
  float of[kTokens8][2];  // of the unit read last

  __device__ __forceinline__ ColumnScales(const Share& share, const ResolvedTile& tile,
                                          int first_k64, int lane) {
    if constexpr (!kAny) return;
    const int first = (tile.m.k64s + 1) / 2 * 256 + first_k64 / 2 * 4;
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int slot = tile.Slot(n * 8 + 2 * (lane & 3) + c);
        rows[n][c] = OperandRow(share, tile.m.operand, slot) + first;
      }
    }
  }
  __device__ __forceinline__ void Read(int unit) {
    if constexpr (!kAny) return;
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) of[n][c] = *reinterpret_cast<const float*>(rows[n][c] + unit * 4);
    }
  }
};

/// Rows of activations of every 8 columns, from the lane's first channel of a slice on.
template <Packing kPacking, int kTokens8>
struct ColumnRows {
  using Shape = UnitShape<kPacking>;
  const uint8_t* first[kTokens8];

  __device__ __forceinline__ ColumnRows(const Share& share, const ResolvedTile& tile, int first_k64,
                                        int lane) {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      first[n] = OperandRow(share, tile.m.operand, tile.Slot(n * 8 + (lane >> 2))) +
                 (first_k64 * 64 + LaneChannels<kPacking>(lane)) * Shape::kElement;
    }
  }
  __device__ __forceinline__ void Of(int unit, const uint8_t* (&at)[kTokens8]) const {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      at[n] = first[n] + unit * (Shape::kK64s * 64 * Shape::kElement);
    }
  }
};

template <Packing kPacking, int kTokens8, int kGroups>
using ProductOf =
    std::conditional_t<UnitShape<kPacking>::kRing, RingProduct<kPacking, kTokens8, kGroups>,
                       ItemProduct<kPacking, kTokens8>>;
template <Packing kPacking, int kGroups>
using WeightsOf = std::conditional_t<UnitShape<kPacking>::kRing, WeightRing<kPacking, kGroups>,
                                     WeightCursor<kPacking>>;

/// Prefetches the biases of up to 32 items into L1; the ends of the items read them at once.
__device__ __forceinline__ void PrefetchBiases(const TileMatrix& m, int product,
                                               const ItemRange& range) {
  const int item = range.first + (static_cast<int>(threadIdx.x % 32) << range.groups_log2);
  if (m.bias == 0 || item >= range.end) return;
  const uint8_t* const at = m.weights + m.bias + item * (product == 0 ? 64 : 128);
  PrefetchToL1(at);
  if (product == 0 && m.second_weights != 0) PrefetchToL1(at + SecondBias(m.row_blocks));
}

/// Applies the scales that are common to an item's sums, once these are complete.
template <Packing kPacking, typename Product, typename Weights, typename Scales>
__device__ __forceinline__ void ScaleItemSums(const Decoding<kPacking>& decoding,
                                              const Weights& weights, Scales& scales,
                                              Product& product) {
  if constexpr (kPacking == Packing::kF8 || kPacking == Packing::kW8A8) {
    scales.Read(0);
    product.EndItem(weights, scales.of);
  }
  if constexpr (IsFp4(kPacking)) product.ScaleItem(decoding);
}

/// The items of one tile that fall to this warp's group.
template <Packing kPacking, int kTokens8, int kGroups, typename Work>
__device__ __forceinline__ void RunItems(Share& share, const ResolvedTile& tile,
                                         const ItemRange& range, const Work& work) {
  using Shape = UnitShape<kPacking>;
  const TileMatrix& m = tile.m;
  const int warp = threadIdx.x / 32;
  // The shuffle keeps it in a register; otherwise it is read again in every unit.
  const int lane = __shfl_sync(~0u, static_cast<int>(threadIdx.x % 32), threadIdx.x % 32);
  const int slices_log2 = share.slices_log2;
  const Slice slice = SliceOf(m.k64s, slices_log2, warp & ((1 << slices_log2) - 1));
  const int units = (slice.end - slice.begin + Shape::kK64s - 1) / Shape::kK64s;
  const int row_blocks = m.row_blocks;
  if (__builtin_expect(share.args.biased != 0, 0)) PrefetchBiases(m, share.product, range);
  const Decoding<kPacking> decoding(m, share.product);
  using Product = ProductOf<kPacking, kTokens8, kGroups>;
  WeightsOf<kPacking, kGroups> weights(m, slice, units, share.product, lane, range, share.ring);
  Product product(lane, share.ring);
  if constexpr (!Shape::kRing) {
    weights.Open(range.first);
    product.Fill(weights);
  }
  if (share.waits) WaitForH(share, tile);

  const ColumnRows<kPacking, kTokens8> rows(share, tile, slice.begin, lane);
  const StoredSlots<kTokens8> stored(tile, share.product, lane);
  ColumnScales<kPacking, kTokens8> scales(share, tile, slice.begin, lane);
  const uint8_t* at[kTokens8];
  if constexpr (Shape::kRing) {
#pragma unroll
    for (int i = 0; i < Product::kLoads; ++i) product.Load(rows.first, i);
  }
#pragma unroll 1
  for (int item = range.first; item < range.end; item += 1 << range.groups_log2) {
    product.Clear();
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      if constexpr (kPacking == Packing::kW4A8) scales.Read(unit);
      if constexpr (Shape::kRing) {
        rows.Of(unit + 1 < units ? unit + 1 : 0, at);
        product.Unit(weights.Next(), at, decoding, weights.zeros, scales.of);
      } else {
        if (unit + 1 < units) {
          weights.Advance();
        } else {
          weights.OpenOrStop(item + (1 << range.groups_log2), range.end);
          product.OpenItem(weights);
        }
        rows.Of(unit, at);
        product.Unit(at, weights);
      }
    }
    ScaleItemSums(decoding, weights, scales, product);
    EndItem<kTokens8>(share.args, share.product, row_blocks, tile.plain_h, slices_log2, item,
                      stored, share.reduce, share.buffer, product.acc,
                      [&] { return work.Biases(tile.index, share.product); });
  }
  if constexpr (kTokens8 == kReduceBuffers) GroupBarrier(slices_log2, warp);  // see EndItem
}

/// kMost8: tiles have at most 8 times as many tokens.
template <int kMost8, Packing kPacking, int kGroups = 0, typename Work>
__device__ __forceinline__ void RunPacking(Share& share, const ResolvedTile& tile,
                                           const ItemRange& range, const Work& work) {
  if (kMost8 == 1 || tile.count <= 8) {
    RunItems<kPacking, 1, kGroups>(share, tile, range, work);
  } else {
    RunItems<kPacking, kMost8, kGroups>(share, tile, range, work);
  }
}

template <int kMost8, typename Work>
__device__ __forceinline__ void RunTile(Share& share, const ResolvedTile& tile,
                                        const ItemRange& range, const Work& work) {
  const TileMatrix& m = tile.m;
  switch (m.packing) {
    case Packing::kBf16:
      return RunPacking<kMost8, Packing::kBf16>(share, tile, range, work);
    case Packing::kW8:
      return RunPacking<kMost8, Packing::kW8>(share, tile, range, work);
    case Packing::kW4:
      if (m.group_k16s == 8) return RunPacking<kMost8, Packing::kW4, 1>(share, tile, range, work);
      return RunPacking<kMost8, Packing::kW4>(share, tile, range, work);
    case Packing::kW3:
      if (m.group_k16s == 8) return RunPacking<kMost8, Packing::kW3, 1>(share, tile, range, work);
      return RunPacking<kMost8, Packing::kW3>(share, tile, range, work);
    case Packing::kW2:
      if (m.group_k16s == 4) return RunPacking<kMost8, Packing::kW2, 2>(share, tile, range, work);
      return RunPacking<kMost8, Packing::kW2>(share, tile, range, work);
    case Packing::kF8:
      return RunPacking<kMost8, Packing::kF8>(share, tile, range, work);
    case Packing::kW8A8:
      return RunPacking<kMost8, Packing::kW8A8>(share, tile, range, work);
    case Packing::kW4A8:
      return RunPacking<kMost8, Packing::kW4A8>(share, tile, range, work);
    case Packing::kF8Block:
      return RunPacking<kMost8, Packing::kF8Block>(share, tile, range, work);
    case Packing::kMxFp4:
      return RunPacking<kMost8, Packing::kMxFp4>(share, tile, range, work);
    case Packing::kNvFp4:
      return RunPacking<kMost8, Packing::kNvFp4>(share, tile, range, work);
    case Packing::kW4Group:
    case Packing::kW4GroupF16:
      return RunPacking<kMost8, Packing::kW4Group>(share, tile, range, work);
  }
}

/// work: what the tiles are, TileAt(index, product, lane), and Biases(index, product).
template <int kMost8, typename Work>
__device__ __forceinline__ void RunShare(Share& share, TileWalk walk, const Work& work) {
  const int warp = threadIdx.x / 32;
  while (!walk.done()) {
    const ResolvedTile tile =
        work.TileAt(walk.at.tile, share.product, static_cast<int>(threadIdx.x % 32));
    const int slices_log2 = KSlicesLog2(tile.m.k64s);
    if (slices_log2 != share.slices_log2) {
      // Groups of the new size reuse the reduction buffers of the old ones.
      GroupBarrier(max(slices_log2, share.slices_log2), warp);
      share.slices_log2 = slices_log2;
      share.buffer = 0;
    }
    const ItemRange range = walk.Items(tile.m, warp);
    if (!range.empty()) {
      RunTile<kMost8>(share, tile, range, work);
      if (share.product == 0 && share.args.last == 1) Announce(share, tile.index, range.count());
    }
    walk.Next(range);
  }
}

/// The shares that a CTA works on next, one of each product.
struct TakenShares {
  int ticket[2];
  Position begin[2];
  Position end[2];
  int next[2];            // the next ticket, valid when the mbarrier's phase ends
  uint64_t mbarriers[2];  // of one thread
};
/// work: where shares begin, StartOf(product, share).
template <typename Work>
__device__ __forceinline__ void Take(const GroupGemmArgs& args, int product, int ticket,
                                     const Work& work, TakenShares* to) {
  to->ticket[product] = ticket;
  if (ticket >= args.shares) return;
  to->begin[product] = work.StartOf(product, ticket);
  to->end[product] = work.StartOf(product, ticket + 1);
}

/// Works on the shares that were taken, and then on shares that no CTA has taken yet. shared:
/// kGemmSharedBytes. Called by a CTA of kGemmThreads.
template <int kMost8, typename Work>
__device__ __forceinline__ void RunShares(const GroupGemmArgs& args, const Work& work,
                                          TakenShares& taken, float* shared) {
  const bool both = args.first != args.last;
  // The shuffle keeps values derived from it in registers.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const bool takes = threadIdx.x == kGemmThreads - 32;  // the last group has the least to do
  const auto* rings = reinterpret_cast<const uint8_t*>(shared) + kReduceBytes;
  Share share{args, shared, rings + warp * kRingBytes};
  for (int product = args.first; product <= args.last; ++product) {
    share.product = product;
    share.waits = both && product == 1;
    // Mostly a CTA has one share of each product. Its warps go on to the next product as soon as
    // they are done with one, and synchronize only if there is another share.
    for (int parity = 0; taken.ticket[product] < args.shares; parity ^= 1) {
      int next = args.shares;
      if (both && takes) next = atomicAdd(args.table.ticket + product, 1);  // beside the products
      RunShare<kMost8>(share, {taken.begin[product], taken.end[product], 0}, work);
      if (takes) {
        taken.next[product] = next;
        ArriveMbarrier(&taken.mbarriers[product]);
      }
      WaitMbarrier(&taken.mbarriers[product], parity);
      if (taken.next[product] >= args.shares) break;
      __syncthreads();
      if (takes) Take(args, product, next, work, &taken);
      __syncthreads();
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_GROUP_SHARE_CUH_
