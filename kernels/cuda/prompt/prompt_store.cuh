// Stores the results of a tile of family P: act(gate) * up to h, down to the slots' rows.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_STORE_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_STORE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"
#include "kernels/cuda/primitives/prefetch_l1.cuh"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_warp.cuh"

namespace moert::cuda {

/// `staging`: Warp::kStaging bytes of shared memory of the group's own.
template <bool kGateUp, int kMost, int kGroups>
struct PromptStore {
  using Warp = PromptWarp<kGateUp, kMost, kGroups>;
  static constexpr int kBlocks = Warp::kBlocks;
  static constexpr bool kEights = kGateUp && kBlocks == 1;  // kHalves, or kPairs after the exchange
  template <int kColumns>
  using Sums = float[kBlocks][kColumns / 2];

  const Warp& of;
  const uint32_t staging;

  /// Prefetches the biases into L1, where AddBiases reads them when the products are done.
  __device__ __forceinline__ void PrefetchBiases(const PromptSlot<kMost>& slot) const {
    const auto prefetch = [&](int row) {
      if (HasBias(slot, row)) PrefetchToL1(BiasOf(slot, row));
    };
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      prefetch(of.FirstRow(b));
      prefetch(of.SecondRow(b));
    }
  }

  /// Adds every row's bias from the record. The condition of a load is not its address: ptxas 13.0
  /// seems to compare an address with null before it is written (sm_90 by PTX of compute_89, w8a8).
  template <int kColumns>
  __device__ __forceinline__ void AddBiases(const PromptSlot<kMost>& slot,
                                            Sums<kColumns>& d) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const auto read = [&](int row) { return HasBias(slot, row) ? *BiasOf(slot, row) : 0.0f; };
      const float of_rows[2] = {read(of.FirstRow(b)), read(of.SecondRow(b))};
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        d[b][i] += of_rows[i / 2 % 2];
        asm volatile("" : "+f"(d[b][i]));  // one after the other, as in ForPairs
      }
    }
  }

  /// Turns kPairs into the form of kHalves: of two warps with 16 rows of gate and the same 16 of
  /// up, the first takes eight rows of both and the second the other eight. After that, a thread
  /// has the same channels of gate and up.
  template <int kColumns>
  __device__ __forceinline__ void Exchange(Sums<kColumns>& d) const {
    if constexpr (Warp::kPairs) ExchangeHalves<kColumns>(d[0]);
  }

  /// Changes gate and up so that Activated yields the activation with its limits, alpha and offset:
  /// silu(alpha x) / alpha is x sigmoid(alpha x).
  template <int kColumns>
  __device__ __forceinline__ void Clamp(const DeviceActivation& a, Sums<kColumns>& d) const {
    ForPairs<kColumns>(d, [&](float& gate, float& up) {
      gate = a.alpha * Below(gate, a.limit);
      const float plain = -Below(-Below(up, a.limit), a.limit) + a.up_offset;
      up = (a.gated == 0 ? 1.0f : plain) * a.inverse_alpha;
    });
  }
  /// The same for a squared relu: gate becomes 64, since silu(64) is 64, and up all the rest.
  template <int kColumns>
  __device__ __forceinline__ void Square(const DeviceActivation& a, Sums<kColumns>& d) const {
    ForPairs<kColumns>(d, [&](float& gate, float& up) {
      const float clamped = Below(gate, a.limit), root = clamped < 0 ? 0.0f : clamped;
      const float plain = -Below(-Below(up, a.limit), a.limit) + a.up_offset;
      up = (a.gated == 0 ? 1.0f : plain) * (root * root * (1.0f / 64));
      gate = 64;
    });
  }

  /// Calls Clamp or Square, where the activation is not plain.
  template <int kColumns>
  __device__ __forceinline__ void Prepare(const DeviceActivation& a, Sums<kColumns>& d) const {
    if (a.plain == 0 && a.function == DeviceFunction::kRelu2) {
      Square<kColumns>(a, d);
    } else if (a.plain == 0) {
      Clamp<kColumns>(a, d);
    }
  }

  /// d[0] = act(gate) * up, or zeros where rows are padding (not `there`). With kEights, d[0] has
  /// up at i + 2 of gate's i.
  template <int kColumns>
  __device__ __forceinline__ static void Activate(bool silu, bool there, Sums<kColumns>& d) {
    const auto all = [&](auto is_silu) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        if (kEights && i % 4 >= 2) continue;
        const float up = kEights ? d[0][i + 2] : d[kBlocks - 1][i];
        d[0][i] = Activated(decltype(is_silu)::value, d[0][i], up);
        asm volatile("" : "+f"(d[0][i]));  // one after the other: all at once want more registers
      }
    };
    if (silu) {
      all(std::true_type{});
    } else {
      all(std::false_type{});
    }
    if (there) return;
#pragma unroll
    for (float& v : d[0]) v = 0;
  }

  /// Stores act(gate) * up as bf16 rows of h; padding channels, up to a multiple of 64, are zeros.
  /// Products may have more columns than the slot (kProductColumns).
  template <int kColumns>
  __device__ __forceinline__ void H(const PromptSlot<kMost>& slot, bool silu,
                                    Sums<kColumns>& d) const {
    if constexpr (kEights) {
      const bool there = slot.row_tile * Warp::kOfGate + of.EightRowBlock() < slot.row_blocks;
      Activate<kColumns>(silu, there, d);
      HalvesOfH<kColumns>(slot, d[0]);
    } else {
      const bool there = slot.row_tile * Warp::kOfGate + of.RowBlock(0) < slot.row_blocks;
      const int piece = slot.row_tile * 2 + of.group;
      if (piece * 4 >= slot.row_blocks) return;  // all of the group
      Activate<kColumns>(silu, there, d);
      uint8_t* const h = slot.h + int64_t{piece} * slot.columns * 128;
      const int columns = slot.columns;
      Channels<kColumns>(d[0], [&](int column, uint32_t in_row) -> uint8_t* {
        return column < columns ? h + column * 128 + ((in_row ^ (column & 7)) * 16) : nullptr;
      });
    }
  }

  /// Stores the results of down as bf16 rows of out, by slot.
  template <int kColumns>
  __device__ __forceinline__ void Out(const PromptSlot<kMost>& slot, uint16_t* out, int64_t stride,
                                      const Sums<kColumns>& d) const {
    const int count = slot.count;
    const auto row_bytes = static_cast<uint32_t>(stride) * 2;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int channel = ((slot.row_tile * kGroups + of.group) * kBlocks + b) * 64 +
                          static_cast<int>(of.lane & 7) * 8;  // of the lane's pieces
      const int last = channel < stride ? count : 0;
      uint8_t* const first = reinterpret_cast<uint8_t*>(out + channel);
      Channels<kColumns>(d[b], [&](int column, uint32_t) -> uint8_t* {
        return column < last ? first + uint64_t{slot.rows[column]} * row_bytes : nullptr;
      });
    }
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void ExchangeHalves(float (&d)[kColumns / 2]) const {
    constexpr int kAtOnce = Warp::kStaging / (128 * 8);  // times eight columns
    const uint32_t thread = of.warp * 32 + of.lane;
    const uint32_t mine = staging + thread * 8, theirs = staging + (thread ^ 64) * 8;
    const bool gate = of.warp < 2;
#pragma unroll
    for (int from = 0; from < kColumns / 8; from += kAtOnce) {
      WarpGroupBarrier(of.group);  // what lay there was read
#pragma unroll
      for (int j = from; j < from + kAtOnce && j < kColumns / 8; ++j) {
        const float* v = d + 4 * j;
        StoreShared8(mine + (j - from) * 1024, gate ? v[2] : v[0], gate ? v[3] : v[1]);
      }
      WarpGroupBarrier(of.group);
#pragma unroll
      for (int j = from; j < from + kAtOnce && j < kColumns / 8; ++j) {
        const uint2 two = LoadShared8(theirs + (j - from) * 1024);
        float* v = d + 4 * j;
        v[0] = gate ? v[0] : __uint_as_float(two.x);
        v[1] = gate ? v[1] : __uint_as_float(two.y);
        v[2] = gate ? __uint_as_float(two.x) : v[2];
        v[3] = gate ? __uint_as_float(two.y) : v[3];
      }
    }
  }

  /// The rows of a matrix in a tile. A tile has gate's rows before up's.
  static constexpr int kMatrixRows = (kGateUp ? Warp::kOfGate : 2 * Warp::kOfGate) * 16;

  /// The row of its matrix that a row of the tile is.
  __device__ __forceinline__ static int MatrixRow(const PromptSlot<kMost>& slot, int row) {
    return slot.row_tile * kMatrixRows + row % kMatrixRows;
  }
  /// Whether the matrix has it: other rows are padding.
  __device__ __forceinline__ static bool HasBias(const PromptSlot<kMost>& slot, int row) {
    return MatrixRow(slot, row) < slot.row_blocks * 16;
  }
  /// Address of the bias of a row that has one.
  __device__ __forceinline__ static const float* BiasOf(const PromptSlot<kMost>& slot, int row) {
    const bool apart = row >= kMatrixRows && slot.second_weights != 0;  // else there is one matrix
    const uint8_t* const biases =
        slot.weights + slot.bias + (apart ? SecondBias(slot.row_blocks) : 0);
    return reinterpret_cast<const float*>(biases) + MatrixRow(slot, row);
  }

  /// Calls change(gate, up) for one pair after the other: all at once would need more registers
  /// than there are.
  template <int kColumns, typename Change>
  __device__ __forceinline__ static void ForPairs(Sums<kColumns>& d, const Change& change) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      if (kEights && i % 4 >= 2) continue;
      float& gate = d[0][i];
      float& up = kEights ? d[0][i + 2] : d[kBlocks - 1][i];
      change(gate, up);
      asm volatile("" : "+f"(gate), "+f"(up));
    }
  }

  /// Stores a block's 64 channels as bf16, 16 bytes at each address that `to(column, piece of eight
  /// channels)` returns, unless it is null.
  template <int kColumns, typename To>
  __device__ __forceinline__ void Channels(const float (&d)[kColumns / 2], To to) const {
    constexpr int kAtOnce = Warp::kStaging / 128;
    const int lane = of.lane, thread = of.warp * 32 + lane;
    const uint32_t piece = thread & 7;
#pragma unroll
    for (int from = 0; from < kColumns; from += kAtOnce) {
      WarpGroupBarrier(of.group);  // what lay there was read
#pragma unroll
      for (int c = from; c < from + kAtOnce && c < kColumns; c += 16) {
        const float* v = d + c / 8 * 4;
        const uint32_t row = c - from + (lane & 7) + ((lane >> 4) * 8);
        const uint32_t of_warp = 2 * of.warp + ((lane >> 3) & 1);
        const uint32_t at = staging + row * 128 + ((of_warp ^ (row & 7)) * 16);
        if (c + 8 < kColumns) {
          StoreTransposed4(at, PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]),
                           PackBf16(v[6], v[7]));
        } else {
          StoreTransposed2(at, PackBf16(v[0], v[1]), PackBf16(v[2], v[3]));
        }
      }
      WarpGroupBarrier(of.group);
      // First all addresses, then all values, then all stores: otherwise each store would wait for
      // its own loads.
      constexpr int kPieces = kAtOnce / 16;
      uint8_t* at[kPieces];
      uint4 v[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int column = from + i * 16 + thread / 8;
        at[i] = column < kColumns ? to(column, piece) : nullptr;
      }
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const uint32_t row = i * 16 + thread / 8;
        if (from + i * 16 >= kColumns) continue;
        v[i] = LoadShared16(staging + row * 128 + ((piece ^ (row & 7)) * 16));
      }
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (from + i * 16 < kColumns && at[i] != nullptr) *reinterpret_cast<uint4*>(at[i]) = v[i];
      }
    }
  }

  /// Stores h for kEights: a warp has eight channels of every column, a group 32.
  template <int kColumns>
  __device__ __forceinline__ void HalvesOfH(const PromptSlot<kMost>& slot,
                                            const float (&d)[kColumns / 2]) const {
    const int group = of.group, warp = of.warp, lane = of.lane;
    const int of_row = slot.row_tile * (kGroups / 2) + group / 2;  // which 64 channels of h
    if (of_row * 4 >= slot.row_blocks) return;                     // all of the group
    const int columns = slot.columns;
    uint8_t* const h = slot.h + int64_t{of_row} * columns * 128;
    constexpr int kAtOnce = Warp::kStaging / 64;
#pragma unroll
    for (int from = 0; from < kColumns; from += kAtOnce) {
      constexpr int kTo = kColumns;
      WarpGroupBarrier(group);
#pragma unroll
      for (int c = from; c < from + kAtOnce && c < kTo; c += 16) {
        uint32_t v[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool odd = c / 8 + j == kColumns / 8;  // one beyond the last eight columns
          v[j] = odd ? 0 : PackBf16(d[(c / 8 + j) * 4], d[(c / 8 + j) * 4 + 1]);
        }
        const uint32_t row = c - from + (lane & 15);
        StoreTransposed2(staging + row * 64 + ((of.Eight() ^ ((row >> 1) & 3)) * 16), v[0], v[1]);
      }
      WarpGroupBarrier(group);
      const int thread = warp * 32 + lane;
#pragma unroll
      for (int i = 0; i < kAtOnce / 32; ++i) {
        const uint32_t row = i * 32 + thread / 4;
        const uint32_t piece = thread & 3;
        if (from + static_cast<int>(row) < columns) {
          const uint4 v = LoadShared16(staging + row * 64 + ((piece ^ ((row >> 1) & 3)) * 16));
          const uint32_t column = from + row;
          *reinterpret_cast<uint4*>(h + column * 128 +
                                    (((group % 2 * 4 + piece) ^ (column & 7)) * 16)) = v;
        }
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_STORE_CUH_
