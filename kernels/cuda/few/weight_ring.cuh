// The ring through which a warp loads few-bit weights: asynchronous copies fill a ring of units in
// shared memory, several units ahead of the products, over all items of the warp's share of a tile.
// A unit of these packings has too few bytes for one unit in registers to hide the memory latency.
#ifndef MOERT_KERNELS_CUDA_FEW_WEIGHT_RING_CUH_
#define MOERT_KERNELS_CUDA_FEW_WEIGHT_RING_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/few/scale_copies.cuh"
#include "kernels/cuda/few/tile_walk.cuh"
#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/packing.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"

namespace moert::cuda {

/// Shared memory of a warp's ring and of the scales that the warp prepares for its lanes.
constexpr int kRingBytes = 8192;

/// Bytes of a unit's prepared scales, see imported_scales.cuh.
constexpr int PreparedBytes(Packing p) {
  switch (p) {
    case Packing::kMxFp4:
      return 256;
    case Packing::kNvFp4:
      return 512;
    case Packing::kW4Group:
      return 768;
    default:
      return 0;
  }
}

/// Swaps the halves of 128 bytes in every second block of k16 (w8, fp8) or of 128 bytes (the
/// others) of a piece of 64 k, so that lanes that read two of them at a time have no bank
/// conflicts. Both copies and reads apply it.
template <Packing kPacking>
__device__ __forceinline__ int RingSwizzle(int at) {
  return at ^ ((K64Bytes(kPacking) == 1024 ? at >> 2 : at >> 1) & 64);
}

/// kGroups: as GroupScaleCopies.
template <Packing kPacking, int kGroups>
class WeightRing {
 public:
  using Shape = UnitShape<kPacking>;
  using Scales = std::conditional_t<IsImported(kPacking), ImportedScaleCopies<kPacking>,
                                    GroupScaleCopies<kPacking, kGroups>>;
  static constexpr int kStageBytes = 2 * Shape::kBytes + Scales::kBytes;
  static constexpr int kFit = (kRingBytes - PreparedBytes(kPacking)) / kStageBytes;
  static constexpr int kStages = kFit < 6 ? kFit : 6;
  static_assert(kStages >= 3, "a stage is read, one is being filled, one is on its way");

  /// Begins to fill the ring with the units of `range`. shared: kRingBytes of this warp.
  __device__ __forceinline__ WeightRing(const TileMatrix& m, const Slice& slice, int units,
                                        int product, int lane, const ItemRange& range,
                                        const uint8_t* shared)
      : zeros(m.zero_distance != 0),
        shared_(shared),
        scales_(m, slice, units, product, lane, range) {
    const int k64s = m.k64s;
    const int step = 1 << range.groups_log2;
    length_ = slice.end - slice.begin;
    left_ = range.empty() ? 0 : length_;
    items_ = range.count();
    const int block = range.first << product;
    weights_ = m.weights + (static_cast<int64_t>(block) * k64s + slice.begin) * kK64 + lane * 16;
    weights_jump_ = (step << product) * k64s * kK64 - units * Shape::kBytes;
    row_distance_ = m.second_weights;
    // A last odd block of `down` is paired with itself.
    const bool lone = product == 1 && (m.row_blocks & 1) != 0 && range.end == m.items &&
                      ((m.items - 1 - range.first) & (step - 1)) == 0;
    lone_item_ = lone ? 1 : 0;
    lane_ = lane;
    const int in_piece = kK64 == 256 ? (lane & 15) * 16 : lane * 16;
    lane_to_ = SharedAddress(shared) + (kK64 == 256 ? (lane >> 4) * kK64 : 0) +
               (kK64 == 384 ? lane * 16 : RingSwizzle<kPacking>(in_piece));
    PairLone();
#pragma unroll 1
    for (int s = 0; s + 1 < kStages; ++s) Copy(s * kStageBytes);
  }

  /// Waits until the next unit is there for all lanes, and begins to copy another one. Returns the
  /// unit's stage.
  __device__ __forceinline__ const uint8_t* Next() {
    CopyAsyncWait<kStages - 2>();
    __syncwarp();
    // Into the stage that all lanes have read.
    Copy(read_ == 0 ? (kStages - 1) * kStageBytes : read_ - kStageBytes);
    const uint8_t* stage = shared_ + read_;
    read_ = read_ == (kStages - 1) * kStageBytes ? 0 : read_ + kStageBytes;
    return stage;
  }

  /// Where scales are prepared: PreparedBytes.
  __device__ __forceinline__ static uint8_t* Prepared(const uint8_t* shared) {
    return const_cast<uint8_t*>(shared) + kStages * kStageBytes;
  }

  const bool zeros;

 private:
  static constexpr int kK64 = K64Bytes(kPacking);

  __device__ __forceinline__ void PairLone() {
    if (items_ == lone_item_) {
      row_distance_ = 0;
      scales_.PairLone();
    }
  }
  /// Copies 512 bytes of each row block, from byte `at` of the unit on.
  __device__ __forceinline__ void CopyWeights(uint32_t to, int at) const {
    uint32_t lane_to = to + lane_to_ + at;
    int piece = kK64 == 256 ? lane_ >> 4 : at / kK64;
    if constexpr (kK64 == 384) {
      const int in_unit = at + lane_ * 16;
      piece = in_unit >= 384 ? 1 : 0;
      const int in_piece = in_unit - piece * 384;
      lane_to += RingSwizzle<kPacking>(in_piece) - in_piece;
    }
    const uint32_t there = left_ > piece ? 16 : 0;
    CopyWeights16(lane_to, weights_ + at, there, policy_);
    CopyWeights16(lane_to + Shape::kBytes, weights_ + row_distance_ + at, there, policy_);
  }
  /// Begins to copy the next unit, if there is one. Commits a group of copies in any case.
  __device__ __forceinline__ void Copy(uint32_t to) {
    if (left_ > 0) {
#pragma unroll
      for (int at = 0; at < Shape::kBytes; at += 512) {
        if (at + 512 <= Shape::kBytes || lane_ * 16 < Shape::kBytes - at) CopyWeights(to, at);
      }
      scales_.Copy(SharedAddress(shared_) + to + 2 * Shape::kBytes + lane_ * 16, left_);
      weights_ += Shape::kBytes;
      left_ -= Shape::kK64s;
      if (left_ <= 0 && --items_ > 0) {
        left_ = length_;
        weights_ += weights_jump_;
        scales_.NextItem();
        PairLone();
      }
    }
    CopyAsyncCommit();
  }

  const uint8_t* const shared_;
  const uint64_t policy_ = EvictFirst();
  int lane_;
  uint32_t lane_to_;  // where the lane copies to in the first stage
  // State of the run of items.
  int length_;        // pieces of 64 k of a slice
  int weights_jump_;  // from the end of an item to the next
  int lone_item_;     // value of items_ when the lone item is copied, 0: none
  // State of the unit that is copied next. Pointers are this lane's.
  const uint8_t* weights_;
  Scales scales_;
  int row_distance_;  // from the first row block's weights to the second's
  int items_;         // from here on
  int left_;          // pieces of 64 k of the item; 0: no more items
  int read_ = 0;
};

/// Loads the scales of a unit of few bits from shared memory into registers: scales and zeros of a
/// group for rows g and g + 8 (low and high half) of both row blocks.
struct RingScales {
  uint32_t scale[2];
  uint32_t zero[2];

  /// `at`: of the group, in shared memory. A transposed read of 8 x 8 gives a lane column g of two
  /// rows; they are the two halves of a row block's scales.
  __device__ __forceinline__ RingScales(const uint8_t* at, int lane, bool zeros) {
    const uint32_t row = SharedAddress(at) + (lane >> 3) * 32 + (lane & 1) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(scale[0]), "=r"(scale[1]), "=r"(zero[0]), "=r"(zero[1])
                 : "r"(row)
                 : "memory");
    if (!zeros) zero[0] = zero[1] = 0;
  }
  __device__ __forceinline__ static float Widen(uint32_t pair, int upper) {
    return __uint_as_float(upper == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

/// acc += scale * sum. at: the scales as floats, [row block][16 rows].
template <int kTokens8>
__device__ __forceinline__ void AddScaled(const uint8_t* at, int lane,
                                          const float (&sum)[2][kTokens8][4],
                                          float (&acc)[2][kTokens8][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const float scale = reinterpret_cast<const float*>(at)[r * 16 + upper * 8 + (lane >> 2)];
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
        for (int c = 2 * upper; c < 2 * upper + 2; ++c) {
          acc[r][n][c] = fmaf(scale, sum[r][n][c], acc[r][n][c]);
        }
      }
    }
  }
}

/// acc += unit * scale * x_scale * sum. x_scales: of the columns.
template <int kTokens8>
__device__ __forceinline__ void AddScaled(const RingScales& s, const float (&x_scales)[kTokens8][2],
                                          const int32_t (&sum)[2][kTokens8][4],
                                          float (&acc)[2][kTokens8][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float scale = RingScales::Widen(s.scale[r], c / 2) * (1 / kW4A8Unit);
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
        acc[r][n][c] =
            fmaf(static_cast<float>(sum[r][n][c]), scale * x_scales[n][c & 1], acc[r][n][c]);
      }
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_WEIGHT_RING_CUH_
