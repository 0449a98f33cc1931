#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/copy_async.cuh"
#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace moert::cuda {
namespace {

constexpr int kThreads = kGemmWarps * 32;
constexpr int kStages = 4;
constexpr int kBlockBytes = 1024;  // weights of one row block in a stage
// Weights of two row blocks, then [group 0, 1][scales, zeros][row block 0, 1] of 32 bytes.
constexpr int kStageBytes = 2 * kBlockBytes + 256;
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kPieceFloats = 128;                                          // a 16 x 8 accumulator
constexpr int kReduceFloats = 2 * kGemmWarps * 2 * kPieceFloats;           // two buffers
constexpr int kSharedBytes = kGemmWarps * kRingBytes + kReduceFloats * 4;  // + the producers' tiles

/// What a stage holds of one row block: a chunk.
__device__ __forceinline__ int K64Bytes(Packing p) {
  return p == Packing::kBf16 ? 2048
         : p == Packing::kW8 ? 1024
         : p == Packing::kW4 ? 512
         : p == Packing::kW3 ? 384
                             : 256;
}
constexpr __device__ bool LowBits(Packing p) { return p >= Packing::kW4; }

/// The range of K a warp multiplies, in pieces of 64. Begins on an even piece.
struct Slice {
  int begin;
  int end;
};
__device__ __forceinline__ Slice SliceOf(int k64s, int slices, int slice) {
  const int pairs = (k64s + 1) / 2;
  return {pairs * slice / slices * 2, min(pairs * (slice + 1) / slices * 2, k64s)};
}
/// Chunks of a slice: 32 k of bf16, 64 of w8, 128 of fewer bits (the last may be 64).
__device__ __forceinline__ int ChunksOf(Packing p, Slice slice) {
  const int k64s = slice.end - slice.begin;
  return p == Packing::kBf16 ? 2 * k64s : p == Packing::kW8 ? k64s : (k64s + 1) / 2;
}

/// A task of the CTA: row blocks of a tile.
struct Position {
  int tile;
  int task;
};

/// The first task whose work begins at or after `cost` in the order of the table.
__device__ Position FindTask(const TileTable& table, int product, int64_t cost) {
  const int tiles = *table.num_tiles;
  int before = 0;  // tiles that begin at or before `cost`
  for (int base = 0; base < tiles; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    before += __syncthreads_count(i < tiles && table.cost[product][i] <= cost);
  }
  if (before == 0) return {0, 0};
  const int tile = before - 1;
  const int64_t unit = table.unit[product][tile];
  const int64_t task = (cost - table.cost[product][tile] + unit - 1) / unit;
  if (task >= table.tasks[product][tile]) return {tile + 1, 0};
  return {tile, static_cast<int>(task)};
}

/// Matrices of a tile's format.
template <int kProduct>
__device__ __forceinline__ const DeviceMatrix& First(const DeviceFormat& f) {
  return kProduct == 0 ? f.gate : f.down;
}
template <int kProduct>
__device__ __forceinline__ int PairsOf(const DeviceMatrix& m) {
  return kProduct == 0 ? m.row_blocks : (m.row_blocks + 1) / 2;
}

/// Reads and forgets: what is read stays in L1.
__device__ __forceinline__ void Warm(const void* p) {
  asm volatile("{ .reg .b32 ignored; ld.global.ca.b32 ignored, [%0]; }" ::"l"(p));
}

/// The row of activations that is operand of a slot.
template <int kProduct>
__device__ __forceinline__ const uint16_t* OperandRow(const GroupGemmArgs& args, int slot) {
  if (kProduct == 1) return args.h + slot * args.h_stride;
  const int token = slot < args.pairs ? slot / args.top_k : slot - args.pairs;
  return args.x + token * args.x_stride;
}

/// Where one warp's producer is. In shared memory: it is read once a task, and registers are short.
struct ProducerState {
  Position at;
  Position end;

  // Of the tile.
  const uint8_t* tile_weights;  // of pair 0, at the slice's first k
  const uint8_t* tile_scales;
  int tasks;
  int pairs;
  int pair_step;
  int block_bytes;  // of a whole row block
  int slice_bytes;
  int first_in_group;
  int second_matrix;  // from gate to up, weights
  int second_scales;  // the same, scales
  int row_blocks;
  int chunk_bytes;
  int pieces_per_chunk;  // of 64 k, low-bit weights
  int group_k64s;        // 0: no scales
  int zero_distance;     // from scales to zeros

  // Of the task.
  const uint8_t* weights;
  const uint8_t* scales;
  int second;  // distances of the second row block
  int second_scale;

  __device__ bool done() const {
    return at.tile > end.tile || (at.tile == end.tile && at.task >= end.task);
  }
};

template <int kProduct>
__device__ void OpenTile(const GroupGemmArgs& args, ProducerState* s, int warp, int lane) {
  const Tile tile = args.table.tiles[s->at.tile];
  const DeviceFormat& format = args.formats[tile.format];
  const DeviceMatrix& m = First<kProduct>(format);
  const int slices = KSlices(m.k64s);
  const Slice slice = SliceOf(m.k64s, slices, warp % slices);
  if (lane == 0) {
    const int k64_bytes = K64Bytes(m.packing);
    const int group = m.group_k64s > 0 ? slice.begin / m.group_k64s : 0;
    s->tile_weights = tile.record + m.weight_offset + slice.begin * k64_bytes;
    s->tile_scales = tile.record + m.scale_offset + static_cast<int64_t>(group) * m.row_blocks * 32;
    s->tasks = args.table.tasks[kProduct][s->at.tile];
    s->pairs = PairsOf<kProduct>(m);
    s->pair_step = kGemmWarps / slices;
    s->block_bytes = m.k64s * k64_bytes;
    s->slice_bytes = (slice.end - slice.begin) * k64_bytes;
    s->first_in_group = slice.begin - group * m.group_k64s;
    s->second_matrix = static_cast<int>(format.up.weight_offset - m.weight_offset);
    s->second_scales = static_cast<int>(format.up.scale_offset - m.scale_offset);
    s->row_blocks = m.row_blocks;
    s->chunk_bytes = LowBits(m.packing) ? 2 * k64_bytes : kBlockBytes;
    s->pieces_per_chunk = LowBits(m.packing) ? 2 : 1;
    s->group_k64s = m.group_k64s;
    s->zero_distance = static_cast<int>(m.zero_offset - m.scale_offset);
  }
  // The activations of this slice go to L1 meanwhile, if they have a chance to stay there.
  constexpr int kWarmBytes = 32 << 10;
  if (m.k64s * 128 * tile.count <= kWarmBytes) {
    const int lines = slice.end - slice.begin;  // of 128 bytes
    for (int i = lane; i < lines * tile.count; i += 32) {
      const int token = i / lines;
      Warm(OperandRow<kProduct>(args, tile.slots[token]) + (slice.begin + i - token * lines) * 64);
    }
  }
}

/// Opens the warp's next task (`first`: the one it stands at) that has work for it. All lanes call
/// it. False: there is none.
template <int kProduct>
__device__ __noinline__ bool OpenTask(const GroupGemmArgs& args, ProducerState* s, bool first) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  while (true) {
    __syncwarp();
    bool new_tile = first;
    if (!first) {
      new_tile = s->at.task + 1 >= s->tasks;
      __syncwarp();
      if (lane == 0)
        s->at = new_tile ? Position{s->at.tile + 1, 0} : Position{s->at.tile, s->at.task + 1};
      __syncwarp();
    }
    first = false;
    if (s->done()) return false;
    if (new_tile) {
      OpenTile<kProduct>(args, s, warp, lane);
      __syncwarp();
    }
    const int pair = s->at.task * s->pair_step + warp / (kGemmWarps / s->pair_step);
    if (pair >= s->pairs) continue;
    if (lane == 0) {
      // A last odd block of `down` is paired with itself and the copy dropped.
      const int block = kProduct == 0 ? pair : 2 * pair;
      const bool lone = block + 1 >= s->row_blocks;
      s->weights = s->tile_weights + static_cast<int64_t>(block) * s->block_bytes;
      s->second = kProduct == 0 ? s->second_matrix : lone ? 0 : s->block_bytes;
      s->scales = s->tile_scales + block * 32;
      s->second_scale = kProduct == 0 ? s->second_scales : lone ? 0 : 32;
    }
    __syncwarp();
    return true;
  }
}

/// Issues the copies of one warp's chunks, kStages - 1 ahead of their use, across tasks and tiles.
template <int kProduct>
struct Producer {
  const GroupGemmArgs& args;
  ProducerState* const state;
  const int lane;
  const uint32_t ring;
  int stage = 0;
  bool more = true;

  // Of the task.
  const uint8_t* weights;
  const uint8_t* scales;
  int second;
  int second_scale;
  int chunk_bytes;
  int group_k64s;
  int bytes_left = 0;  // of the slice, a row block
  int in_group;

  __device__ Producer(const GroupGemmArgs& a, ProducerState* s, int l, uint32_t r)
      : args(a), state(s), lane(l), ring(r) {
    Open(true);
  }

  __device__ __forceinline__ void Open(bool first) {
    more = OpenTask<kProduct>(args, state, first);
    if (!more) return;
    weights = state->weights;
    scales = state->scales;
    second = state->second;
    second_scale = state->second_scale;
    chunk_bytes = state->chunk_bytes;
    group_k64s = state->group_k64s;
    bytes_left = state->slice_bytes;
    in_group = state->first_in_group;
  }

  /// Begins the copy of the next chunk, if there is one, and closes a group either way.
  __device__ __forceinline__ void Issue() {
    if (bytes_left == 0 && more) Open(false);
    if (bytes_left > 0) {
      const uint32_t to = ring + stage * kStageBytes;
      const int bytes = min(chunk_bytes, bytes_left);
      const int at16 = lane * 16;
#pragma unroll
      for (int i = 0; i < kBlockBytes; i += 512) {
        if (at16 + i < bytes) {
          CopyAsync16(to + i + at16, weights + i + at16);
          CopyAsync16(to + kBlockBytes + i + at16, weights + second + i + at16);
        }
      }
      if (group_k64s > 0) {
        const int pieces = bytes == chunk_bytes ? state->pieces_per_chunk : 1;
        if (lane < 16) {
          const uint8_t* from = scales + (lane & 1) * 16;
          if (lane & 2) from += second_scale;
          if (lane & 4) from += state->zero_distance;
          if (lane < 8) {
            CopyAsync16(to + 2 * kBlockBytes + lane * 16, from);
          } else if (group_k64s == 1 && pieces == 2) {
            CopyAsync16(to + 2 * kBlockBytes + lane * 16, from + state->row_blocks * 32);
          }
        }
        in_group += pieces;
        while (in_group >= group_k64s) {
          in_group -= group_k64s;
          scales += state->row_blocks * 32;
        }
      }
      weights += bytes;
      bytes_left -= bytes;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    CopyAsyncCommit();
  }
};

/// Shared-memory read of one word of a stage.
__device__ __forceinline__ uint32_t Word(const uint8_t* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}
__device__ __forceinline__ float Bf16At(const uint8_t* p) {
  return __uint_as_float(static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(p)) << 16);
}

constexpr uint32_t kOnes = 0x3f803f80u;  // two bf16 of 1

__device__ __forceinline__ uint32_t Times16(uint32_t pair) {
  const uint32_t sixteens = 0x41804180u;
  const __nv_bfloat162 r = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                   *reinterpret_cast<const __nv_bfloat162*>(&sixteens));
  return *reinterpret_cast<const uint32_t*>(&r);
}

/// sum += A x for both row blocks over 16 k.
template <int kTokens8>
__device__ __forceinline__ void MultiplyK16(const uint32_t (&a)[2][4],
                                            const uint32_t (&b)[kTokens8][2],
                                            float (&sum)[2][kTokens8][4]) {
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    MmaBf16(sum[0][n], a[0], b[n][0], b[n][1]);
    MmaBf16(sum[1][n], a[1], b[n][0], b[n][1]);
  }
}

/// The products of one scale group and the sums of its activations.
template <int kTokens8>
struct GroupSums {
  float sum[2][kTokens8][4];
  float x[kTokens8][4];  // every row holds the sum of its column

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[0][n][c] = sum[1][n][c] = x[n][c] = 0;
    }
  }

  /// acc += scale * (sum - offset * x) - zero * x. scales: this group's part of a stage.
  __device__ __forceinline__ void AddTo(float (&acc)[2][kTokens8][4], const uint8_t* scales,
                                        int lane, float offset, bool asymmetric) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {  // rows g, g + 8
        const uint8_t* at = scales + r * 32 + ((lane >> 2) + 8 * upper) * 2;
        const float scale = Bf16At(at);
        float zero = scale * offset;
        if (asymmetric) zero += Bf16At(at + 64);
#pragma unroll
        for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& to = acc[r][n][2 * upper + c];
            to = fmaf(scale, sum[r][n][2 * upper + c], to);
            to = fmaf(-zero, x[n][c], to);
          }
        }
      }
    }
  }
};

/// The activations of a chunk: a lane's 16 bytes of 32 k of each group of 8 tokens.
template <int kTokens8>
struct ChunkActivations {
  const uint16_t* const (&rows)[kTokens8];
  const int k;  // of the slice
  __device__ __forceinline__ uint4 Get(int k32, int n) const {
    return *reinterpret_cast<const uint4*>(rows[n] + k + k32 * 32);
  }
};

/// Adds 64 k (w8, low bits) of a stage to the sums. weights: of row block 0; the other lies
/// kBlockBytes behind.
template <Packing kPacking, int kTokens8>
__device__ __forceinline__ void MultiplyK64(const uint8_t* weights, int lane,
                                            const ChunkActivations<kTokens8>& x, int first_k32,
                                            GroupSums<kTokens8>& sums) {
  const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll(kTokens8 == 1 ? 2 : 1)  // 16 tokens: registers
  for (int k32 = 0; k32 < 2; ++k32) {
    uint4 v[kTokens8];
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      v[n] = x.Get(first_k32 + k32, n);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k16 = 2 * k32 + half;
      uint32_t b[kTokens8][2];
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
        b[n][0] = half ? v[n].z : v[n].x;
        b[n][1] = half ? v[n].w : v[n].y;
        MmaBf16(sums.x[n], ones, b[n][0], b[n][1]);
      }
      uint32_t a[2][4];
      if constexpr (kPacking == Packing::kW8) {
        uint32_t high[2][4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint2 w =
              *reinterpret_cast<const uint2*>(weights + r * kBlockBytes + k16 * 256 + lane * 8);
          FragmentW8(w.x, w.y, a[r], high[r]);
        }
        MultiplyK16<kTokens8>(a, b, sums.sum);
#pragma unroll
        for (int n = 0; n < kTokens8; ++n) {
          b[n][0] = Times16(b[n][0]);
          b[n][1] = Times16(b[n][1]);
        }
        MultiplyK16<kTokens8>(high, b, sums.sum);
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint8_t* at = weights + r * kBlockBytes + lane * 4;
          if constexpr (kPacking == Packing::kW4) {
            FragmentW4(Word(at + k16 * 128), a[r]);
          } else {
            const uint32_t low = Word(at + k32 * 128);
            if constexpr (kPacking == Packing::kW2) {
              if (half == 0)
                FragmentW2<0>(low, a[r]);
              else
                FragmentW2<1>(low, a[r]);
            } else {
              const uint32_t bits = Word(at + 256);
              if (k16 == 0)
                FragmentW3<0>(low, bits, a[r]);
              else if (k16 == 1)
                FragmentW3<1>(low, bits, a[r]);
              else if (k16 == 2)
                FragmentW3<2>(low, bits, a[r]);
              else
                FragmentW3<3>(low, bits, a[r]);
            }
          }
        }
        MultiplyK16<kTokens8>(a, b, sums.sum);
      }
    }
  }
}

/// One bf16 chunk, 32 k.
template <int kTokens8>
__device__ __forceinline__ void MultiplyBf16(const uint8_t* weights, int lane,
                                             const ChunkActivations<kTokens8>& x,
                                             float (&acc)[2][kTokens8][4]) {
  uint4 v[kTokens8];
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) v[n] = x.Get(0, n);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[kTokens8][2];
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      b[n][0] = half ? v[n].z : v[n].x;
      b[n][1] = half ? v[n].w : v[n].y;
    }
    uint32_t a[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 w =
          *reinterpret_cast<const uint4*>(weights + r * kBlockBytes + half * 512 + lane * 16);
      a[r][0] = w.x;
      a[r][1] = w.y;
      a[r][2] = w.z;
      a[r][3] = w.w;
    }
    MultiplyK16<kTokens8>(a, b, acc);
  }
}

/// What a thread of the epilogue knows of a tile: it stores one column of every 8 tokens.
template <int kTokens8>
struct Columns {
  int slot[kTokens8];  // -1: none

  __device__ __forceinline__ explicit Columns(const Tile& tile) {
    const int lane = threadIdx.x % 32;
    const int column = 2 * (lane & 3) + ((threadIdx.x >> 5) & 1);
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      const int at = n * 8 + column;
      slot[n] = at < tile.count ? tile.slots[at] : -1;
    }
  }
};

/// Sums the warps' parts in the order of K and stores the results of one task. All threads call it.
template <int kProduct, int kTokens8>
__device__ __forceinline__ void Finish(const GroupGemmArgs& args, int row_blocks, int slices,
                                       int task, const Columns<kTokens8>& columns, float* reduce,
                                       int& buffer, const float (&acc)[2][kTokens8][4]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int rows = kGemmWarps / slices;
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    float* to = reduce + buffer * (kReduceFloats / 2);
    buffer ^= 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        to[(warp * 2 + r) * kPieceFloats + c * 32 + lane] = acc[r][n][c];
      }
    }
    __syncthreads();
    if (columns.slot[n] < 0) continue;
    // Product 0: an element is a channel of h (gate and up in one thread); 1: of out.
    const int e = threadIdx.x % kPieceFloats;
    const int row = (lane >> 2) + 8 * (e >> 6);
    const int elements = rows * kPieceFloats * (kProduct == 0 ? 1 : 2);
    for (int i = threadIdx.x; i < elements; i += kThreads) {
      const int piece = i / kPieceFloats;
      const int r = kProduct == 0 ? 0 : piece % 2;
      const int group = kProduct == 0 ? piece : piece / 2;
      const int pair = task * rows + group;
      const int block = kProduct == 0 ? pair : 2 * pair + r;
      if (block >= row_blocks) continue;
      const float* from = to + (group * slices * 2 + r) * kPieceFloats + e;
      float sum = from[0];
      for (int s = 1; s < slices; ++s) sum += from[s * 2 * kPieceFloats];
      if (kProduct == 0) {
        from += kPieceFloats;
        float up = from[0];
        for (int s = 1; s < slices; ++s) up += from[s * 2 * kPieceFloats];
        uint16_t* h = args.h + columns.slot[n] * args.h_stride;
        h[PackedIndex(block * 16 + row)] = ToBf16(Activate(args.activation, sum) * up);
        if (block + 1 == row_blocks) {
          // The padding up to whole pieces of 64 is an operand of `down` too.
          const int padded = (row_blocks + 3) / 4 * 4;
          for (int b = row_blocks; b < padded; ++b) h[PackedIndex(b * 16 + row)] = 0;
        }
      } else if (block * 16 + row < args.hidden) {
        args.out[columns.slot[n] * args.out_stride + block * 16 + row] = sum;
      }
    }
  }
}

/// The warp's part of a task: its slice of K.
template <int kProduct, Packing kPacking, int kTokens8>
__device__ __forceinline__ void RunSlice(Producer<kProduct>& producer, const uint8_t* ring,
                                         int& stage, int k64s, bool asymmetric, bool group_of_64,
                                         int zero_point, const uint16_t* const (&x)[kTokens8],
                                         float (&acc)[2][kTokens8][4]) {
  const int lane = threadIdx.x % 32;
  constexpr int kOffset = kPacking == Packing::kW8 ? 17 * kMagicOffset : kMagicOffset;
  const float offset = static_cast<float>(zero_point + kOffset);
  const int chunks = ChunksOf(kPacking, {0, k64s});
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    constexpr int kK32s = kPacking == Packing::kBf16 ? 1 : kPacking == Packing::kW8 ? 2 : 4;
    const ChunkActivations<kTokens8> v{x, chunk * kK32s * 32};
    CopyAsyncWait<kStages - 2>();
    __syncwarp();
    const uint8_t* at = ring + stage * kStageBytes;
    const uint8_t* scales = at + 2 * kBlockBytes;
    if constexpr (kPacking == Packing::kBf16) {
      MultiplyBf16<kTokens8>(at, lane, v, acc);
    } else if constexpr (kPacking == Packing::kW8) {
      GroupSums<kTokens8> sums;
      sums.Clear();
      MultiplyK64<kPacking, kTokens8>(at, lane, v, 0, sums);
      sums.AddTo(acc, scales, lane, offset, asymmetric);
    } else {
      GroupSums<kTokens8> sums;
      sums.Clear();
      MultiplyK64<kPacking, kTokens8>(at, lane, v, 0, sums);
      if (2 * chunk + 1 < k64s) {
        if (group_of_64) {
          sums.AddTo(acc, scales, lane, offset, asymmetric);
          sums.Clear();
          scales += 128;
        }
        constexpr int kHalfBytes = kPacking == Packing::kW4   ? 512
                                   : kPacking == Packing::kW3 ? 384
                                                              : 256;
        MultiplyK64<kPacking, kTokens8>(at + kHalfBytes, lane, v, 2, sums);
      }
      sums.AddTo(acc, scales, lane, offset, asymmetric);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    __syncwarp();  // nobody reads the stage that is filled next
    producer.Issue();
  }
}

/// The part of a tile that a CTA computes: tasks [first, last).
template <int kProduct, int kTokens8>
__device__ __forceinline__ void RunTile(const GroupGemmArgs& args, const Tile& tile, int first,
                                        int last, Producer<kProduct>& producer, const uint8_t* ring,
                                        float* reduce, int& stage, int& buffer) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const DeviceMatrix& m = First<kProduct>(args.formats[tile.format]);
  const Packing packing = m.packing;
  const int row_blocks = m.row_blocks;
  const int pairs = PairsOf<kProduct>(m);
  const int slices = KSlices(m.k64s);
  const Slice slice = SliceOf(m.k64s, slices, warp % slices);
  const int k64s = slice.end - slice.begin;
  const bool asymmetric = m.asymmetric != 0;
  const bool group_of_64 = m.group_k64s == 1;
  const int zero_point = m.zero_point;
  const Columns<kTokens8> columns(tile);
  const uint16_t* x[kTokens8];
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    const int column = min(n * 8 + (lane >> 2), tile.count - 1);
    x[n] = OperandRow<kProduct>(args, tile.slots[column]) + slice.begin * 64 + (lane & 3) * 8;
  }
#pragma unroll 1
  for (int task = first; task < last; ++task) {
    float acc[2][kTokens8][4] = {};
    const int pair = (task * kGemmWarps + warp) / slices;
    if (pair < pairs) {
      switch (packing) {
        case Packing::kBf16:
          RunSlice<kProduct, Packing::kBf16, kTokens8>(producer, ring, stage, k64s, asymmetric,
                                                       group_of_64, zero_point, x, acc);
          break;
        case Packing::kW8:
          RunSlice<kProduct, Packing::kW8, kTokens8>(producer, ring, stage, k64s, asymmetric,
                                                     group_of_64, zero_point, x, acc);
          break;
        case Packing::kW4:
          RunSlice<kProduct, Packing::kW4, kTokens8>(producer, ring, stage, k64s, asymmetric,
                                                     group_of_64, zero_point, x, acc);
          break;
        case Packing::kW3:
          RunSlice<kProduct, Packing::kW3, kTokens8>(producer, ring, stage, k64s, asymmetric,
                                                     group_of_64, zero_point, x, acc);
          break;
        case Packing::kW2:
          RunSlice<kProduct, Packing::kW2, kTokens8>(producer, ring, stage, k64s, asymmetric,
                                                     group_of_64, zero_point, x, acc);
          break;
      }
    }
    Finish<kProduct, kTokens8>(args, row_blocks, slices, task, columns, reduce, buffer, acc);
  }
}

template <int kProduct>
__global__ void __launch_bounds__(kThreads, 2)
    GroupGemmKernel(const __grid_constant__ GroupGemmArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ ProducerState producers[kGemmWarps];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  uint8_t* ring = shared + warp * kRingBytes;
  float* reduce = reinterpret_cast<float*>(shared + kGemmWarps * kRingBytes);

  const int64_t total = *args.table.total[kProduct];
  const Position begin = FindTask(args.table, kProduct, total * blockIdx.x / gridDim.x);
  const Position end = FindTask(args.table, kProduct, total * (blockIdx.x + 1) / gridDim.x);
  if (lane == 0) {
    producers[warp].at = begin;
    producers[warp].end = end;
  }
  Producer<kProduct> producer(args, &producers[warp], lane, SharedAddress(ring));
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) producer.Issue();
  int stage = 0;
  int buffer = 0;
  for (Position at = begin; at.tile <= end.tile; ++at.tile, at.task = 0) {
    const int last = at.tile == end.tile ? end.task : args.table.tasks[kProduct][at.tile];
    if (at.task >= last) continue;
    const Tile tile = args.table.tiles[at.tile];
    if (tile.count <= 8) {
      RunTile<kProduct, 1>(args, tile, at.task, last, producer, ring, reduce, stage, buffer);
    } else {
      RunTile<kProduct, 2>(args, tile, at.task, last, producer, ring, reduce, stage, buffer);
    }
  }
  CopyAsyncWait<0>();
}

template <int kProduct>
int Launch(const GroupGemmArgs& args, int ctas, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(
      GroupGemmKernel<kProduct>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  GroupGemmKernel<kProduct><<<ctas, kThreads, kSharedBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

int LaunchGateUp(const GroupGemmArgs& args, int ctas, CUstream_st* stream) {
  return Launch<0>(args, ctas, stream);
}
int LaunchDown(const GroupGemmArgs& args, int ctas, CUstream_st* stream) {
  return Launch<1>(args, ctas, stream);
}

int GroupGemmCtas() {
  int device = 0, processors = 0, a_processor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaFuncSetAttribute(GroupGemmKernel<0>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedBytes) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&a_processor, GroupGemmKernel<0>, kThreads,
                                                    kSharedBytes) != cudaSuccess) {
    return 0;
  }
  return processors * a_processor;
}

}  // namespace moert::cuda
