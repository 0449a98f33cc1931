// How one warp of the grouped product brings its weights: a ring of stages in shared memory, each
// with one chunk of K of the two row blocks of an item and the scales of the chunk, filled by
// cp.async across items and tiles while earlier stages are multiplied.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_WEIGHT_STREAM_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_WEIGHT_STREAM_CUH_

#include <cstdint>

#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/primitives/copy_async.cuh"

namespace moert::cuda {

constexpr int kBlockBytes = 1024;  // weights of one row block in a stage
// Weights of two row blocks, then [group 0, 1][scales, zeros][row block 0, 1] of 32 bytes.
constexpr int kStageBytes = 2 * kBlockBytes + 256;

/// Stages of a ring: as many as 16 warps have room for (compute capability, major * 10 + minor).
MOERT_HOST_DEVICE constexpr int StagesOf(int capability) {
  return capability == 80 || capability == 87 ? 3 : capability >= 90 && capability < 120 ? 4 : 2;
}
#ifdef __CUDA_ARCH__
constexpr int kStages = StagesOf(__CUDA_ARCH__ / 10);
#else
constexpr int kStages = 4;
#endif

MOERT_HOST_DEVICE constexpr bool LowBits(Packing p) { return p >= Packing::kW4; }

/// The range of K a warp multiplies, in pieces of 64. Begins on an even piece.
struct Slice {
  int begin;
  int end;
};
/// Slice `slice` of 2^log2.
__device__ __forceinline__ Slice SliceOf(int k64s, int log2, int slice) {
  const int pairs = (k64s + 1) / 2;
  return {(pairs * slice >> log2) * 2, min((pairs * (slice + 1) >> log2) * 2, k64s)};
}

/// Items that one group has to do of a tile: first, first + 2^groups_log2, ... below end.
struct ItemRange {
  int first;
  int end;
  int groups_log2;
};

/// Walks the tiles of a CTA. `turn`: items before the tile, of all groups; they are dealt out in
/// one round over all tiles, so that groups get equal shares.
struct TileWalk {
  Position at;
  Position end;
  int turn;

  __device__ __forceinline__ bool done() const {
    return at.tile > end.tile || (at.tile == end.tile && at.item >= end.item);
  }
  __device__ __forceinline__ ItemRange Items(const TileMatrix& m, int warp) const {
    const int slices_log2 = KSlicesLog2(m.k64s);
    const int groups_log2 = kGemmWarpsLog2 - slices_log2;
    const int last = at.tile == end.tile ? end.item : m.items;
    const int behind = ((warp >> slices_log2) - turn) & ((1 << groups_log2) - 1);
    return {at.item + behind, last, groups_log2};
  }
  __device__ __forceinline__ void Next(const ItemRange& range) {
    turn += range.end - at.item;
    at = {at.tile + 1, 0};
  }
};

/// The items of one tile that a warp has to multiply, as its stream needs them. In shared memory.
struct StreamRun {
  TileMatrix matrix;
  ItemRange items;
  int block_bytes;
  int slice_bytes;    // of a row block
  int chunks_before;  // of the first scale group, that belong to earlier slices
};

/// Runs found and not yet multiplied: the stream is at most kStages - 1 items ahead.
constexpr int kQueue = 4;
static_assert(kStages <= kQueue);

/// In shared memory: read once an item, and registers are short.
struct WarpState {
  TileWalk walk;
  int found;   // runs put into the queue
  int opened;  // taken out of it
  int item;    // the next one of the run opened last
  StreamRun queue[kQueue];
};

/// Where the 16 bytes that a lane copies of each 512 of a row block go, so that neither the copy
/// nor the reads have bank conflicts. The reads (multiply.cuh): w4 16 bytes at (t, g) of [4][8],
/// w8 at (t / 2, 2 g + t % 2) of [2][16], w2 8 bytes in (t / 2, g) of [2][8].
__device__ __forceinline__ int Swizzled(Packing p, int unit) {
  if (p == Packing::kW4) return (unit & 24) | ((unit + (unit >> 3) * 2) & 7);
  if (p == Packing::kW8) return unit ^ ((unit >> 4) << 2);
  if (p == Packing::kW2) return unit ^ ((unit >> 1) & 4);
  return unit;
}

/// Puts the warp's next run into its queue, if there is one. All lanes call it.
__device__ __noinline__ void FindRun(const Tile* tiles, int product, WarpState* s) {
  if (threadIdx.x % 32 == 0) {
    const int warp = threadIdx.x / 32;
    TileWalk walk = s->walk;
    while (!walk.done()) {
      const TileMatrix m = tiles[walk.at.tile].matrix[product];
      const ItemRange items = walk.Items(m, warp);
      walk.Next(items);
      if (items.first >= items.end) continue;
      const int log2 = KSlicesLog2(m.k64s);
      const Slice slice = SliceOf(m.k64s, log2, warp & ((1 << log2) - 1));
      const int k64_bytes = K64Bytes(m.packing);
      const bool low = LowBits(m.packing);
      StreamRun& run = s->queue[s->found++ % kQueue];
      run = {m, items, m.k64s * k64_bytes, (slice.end - slice.begin) * k64_bytes, 0};
      run.matrix.weights += slice.begin * k64_bytes;
      if (m.group_k64s >= m.k64s) {
        run.chunks_before = slice.begin >> low;
      } else if (m.group_k64s > 0) {
        const int group = m.group_k64s == 2 ? slice.begin / 2 : slice.begin / m.group_k64s;
        run.matrix.scales += static_cast<int64_t>(group) * m.row_blocks * 32;
        run.chunks_before = (slice.begin - group * m.group_k64s) >> low;
      }
      break;
    }
    s->walk = walk;
  }
  __syncwarp();
}

/// Issues the copies of a warp's chunks, kStages - 1 ahead of their use.
struct WeightStream {
  const GroupGemmArgs& args;
  WarpState* const state;

  // Of the run.
  int chunk_bytes = 0;
  int group_chunks;  // of a scale group
  int group_stride;
  int scale_lane;  // bytes that the chunk must have for this lane to copy scales
  int to_weights;  // from the stage's begin

  // Of the item.
  const uint8_t* weights0;  // this lane's bytes
  const uint8_t* weights1;
  const uint8_t* scales;  // this lane's: half, row block, zeros, second group by the bits of lane
  int left = 0;           // bytes of the slice, a row block
  int group_left;         // chunks

  __device__ WeightStream(const GroupGemmArgs& a, WarpState* s) : args(a), state(s) {}

  /// Finds one more run. Called once before each run is multiplied, kStages times in advance.
  __device__ __forceinline__ void Find() { FindRun(args.table.tiles, args.product, state); }

  /// Begins the copy of the next chunk into the stage at shared address `stage`, if there is a
  /// chunk, and closes a group of copies either way.
  __device__ __forceinline__ void Issue(uint32_t stage) {
    if (left == 0) Open();
    if (left > 0) {
      const uint32_t to = stage + to_weights;
      const int lane = threadIdx.x % 32;
      const int bytes = min(chunk_bytes, left);
      if (lane * 16 < bytes) {
        CopyAsync16(to, weights0);
        CopyAsync16(to + kBlockBytes, weights1);
      }
      if (lane * 16 + 512 < bytes) {
        CopyAsync16(to + 512, weights0 + 512);
        CopyAsync16(to + kBlockBytes + 512, weights1 + 512);
      }
      if (bytes >= scale_lane) CopyAsync16(stage + 2 * kBlockBytes + lane * 16, scales);
      weights0 += bytes;
      weights1 += bytes;
      left -= bytes;
      if (--group_left == 0) {
        group_left = group_chunks;
        scales += group_stride;
      }
    }
    CopyAsyncCommit();
  }

 private:
  /// Opens the next item, if there is one.
  __device__ __forceinline__ void Open() {
    const int lane = threadIdx.x % 32;
    int opened = state->opened;
    int item = state->item;
    if (opened == 0 || item >= state->queue[(opened - 1) % kQueue].items.end) {
      if (opened == state->found) return;
      const StreamRun& run = state->queue[opened % kQueue];
      const TileMatrix& m = run.matrix;
      ++opened;
      item = run.items.first;
      const bool low = LowBits(m.packing);
      chunk_bytes = low ? 2 * K64Bytes(m.packing) : kBlockBytes;
      // Two groups of 64 a chunk count as one of twice the size.
      const bool two_groups = m.group_k64s == 1 && low;
      group_chunks = two_groups ? 1 : (m.group_k64s + low) >> low;
      group_stride = m.row_blocks * (two_groups ? 64 : 32);
      const bool copies = m.group_k64s > 0 && lane < (two_groups ? 16 : 8) &&
                          !(m.zero_distance == 0 && (lane & 4) != 0);
      scale_lane = !copies ? INT32_MAX : lane < 8 ? 0 : chunk_bytes;
      to_weights = Swizzled(m.packing, lane) * 16;
    }
    const StreamRun& run = state->queue[(opened - 1) % kQueue];
    const TileMatrix& m = run.matrix;
    // A last odd block of `down` is paired with itself and the copy dropped.
    const int block = item << args.product;
    const bool lone = args.product == 1 && block + 1 >= m.row_blocks;
    weights0 = m.weights + static_cast<int64_t>(block) * run.block_bytes + lane * 16;
    weights1 = weights0 + (lone ? 0 : m.second_weights);
    scales = m.scales + block * 32 + (lane & 1) * 16;
    if ((lane & 2) && !lone) scales += m.second_scales;
    if (lane & 4) scales += m.zero_distance;
    if (lane & 8) scales += m.row_blocks * 32;
    left = run.slice_bytes;
    group_left = group_chunks - run.chunks_before;
    const int next = item + (1 << run.items.groups_log2);
    __syncwarp();
    if (lane == 0) {
      state->opened = opened;
      state->item = next;
    }
    __syncwarp();
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_WEIGHT_STREAM_CUH_
