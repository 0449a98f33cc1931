// Family P's shared memory: the slots of resolved tiles, and the ring of stages.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_RING_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_RING_CUH_

#include <cstdint>

#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_imported.cuh"
#include "kernels/cuda/prompt/prompt_int8.cuh"
#include "kernels/cuda/prompt/prompt_weights.cuh"

namespace moert::cuda {

constexpr int kPromptSlots = 3;  // resolved tiles in shared memory
/// Bytes of shared memory that stage results to be stored, in equal parts for the warp groups.
constexpr int kPromptStaging = 16384;

/// Columns that a slot has room for: a multiple of the warp size.
MOERT_HOST_DEVICE constexpr int PromptPlaces(int most) { return (most + 31) / 32 * 32; }

/// A tile, as the scheduling warp resolved it.
template <int kMost>
struct PromptSlot {
  const uint8_t* weights;                 // of row block 0: gate or down
  const uint8_t* scales;                  // likewise
  uint8_t* h;                             // of the unit
  int32_t second_weights, second_scales;  // from gate's to up's
  int32_t k64s, group_k64s;
  int32_t row_blocks;
  int32_t row_tile;
  int32_t columns;  // 0: there are no more tiles
  int32_t count;
  PromptScaleForm form;                  // of imported packings
  float scales_of[PromptPlaces(kMost)];  // HasRowScales: of the columns' activations
  const float* of_columns;               // the unit's h_columns, see PromptGemmArgs
  int32_t zero_distance;                 // of packings with zeros
  int32_t bias;                          // as TileMatrix
  int32_t same;  // fp8 by fp8: whether rows have the same scales, see SameScales
  /// By column. Gate and up: where its row of x begins, in the order of GatherPlace; down: the
  /// slot.
  alignas(16) uint32_t rows[PromptPlaces(kMost)];
};

/// A column's index in PromptSlot::rows of gate and up. The columns of a gathering thread are 8
/// apart; this order puts them side by side.
MOERT_HOST_DEVICE constexpr int GatherPlace(int most, int column) {
  return column % 8 * (PromptPlaces(most) / 8) + column / 8;
}

/// A piece is the weights that 128 bytes of an activation row are multiplied by: this many times 64
/// k.
MOERT_HOST_DEVICE constexpr int PieceK64s(Packing p) { return Is8Bit(p) ? 2 : 1; }
/// Pieces of a stage. Two where there are few columns and copies of a row block would otherwise be
/// short.
MOERT_HOST_DEVICE constexpr int StagePieces(Packing p, int most) {
  return most == 64 && K64Bytes(p) <= 512 && !Is8Bit(p) && !IsImported(p) ? 2 : 1;
}

/// Whether stages hold a float for every column: the scale of its activations, or their sum.
MOERT_HOST_DEVICE constexpr bool HasColumnFloats(Packing p) {
  return p == Packing::kW4A8 || p == Packing::kF8BlockF8 || HasZeros(p);
}

/// Whether all stages have whole pieces. If the last one has only 64 k, its weights are copied
/// twice; the activations of the second half are zeros.
MOERT_HOST_DEVICE constexpr bool HasWholeStages(Packing p, int most) {
  return p == Packing::kF8BlockF8 && most == 112;
}

/// The layout of stages, results, barriers and slots in shared memory.
template <Packing kPacking, int kMost>
struct PromptRing {
  static constexpr int kGroups = PromptWarpGroups(kPacking, kMost);
  static constexpr int kPieces = StagePieces(kPacking, kMost);
  static constexpr int kRowBlocks = PromptRowBlocks(kMost);
  static constexpr int kPiece = PieceK64s(kPacking) * K64Bytes(kPacking);  // of a row block
  static constexpr int kRun = kPieces * kPiece;                            // likewise
  static constexpr int kWeights = kRowBlocks * kRun;  // without the scales behind them
  static constexpr int kPieceScales = PromptScaleBytes(kPacking, kRowBlocks);
  static constexpr bool kWhole = HasWholeStages(kPacking, kMost);
  static constexpr int kPieceFloats = HasColumnFloats(kPacking) ? kMost * 4 : 0;
  static constexpr int kStageBytes = kWeights + kPieces * (kPieceScales + kPieceFloats);
  static constexpr int kTokens = kPieces * kMost * 128;
  static constexpr int kSlotBytes = kPromptSlots * static_cast<int>(sizeof(PromptSlot<kMost>));
  static constexpr int kBarrierBytes = 512;
  static constexpr int kRest = kPromptStaging + kSlotBytes + kBarrierBytes + 1024;
  static constexpr int kFit = (232448 - kRest) / (kStageBytes + kTokens);
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kBytes = kRest + kStages * (kStageBytes + kTokens);
  static_assert(kStages >= 3);

  uint32_t base;  // a multiple of 1024
  __device__ __forceinline__ uint32_t Tokens(uint32_t stage) const {
    return base + stage * kTokens;
  }
  __device__ __forceinline__ uint32_t Weights(uint32_t stage) const {
    return base + kStages * kTokens + stage * kStageBytes;
  }
  __device__ __forceinline__ uint32_t Scales(uint32_t stage, int piece) const {
    return Weights(stage) + kWeights + piece * kPieceScales;
  }
  __device__ __forceinline__ uint32_t Floats(uint32_t stage, int piece) const {
    return Weights(stage) + kWeights + kPieces * kPieceScales + piece * kPieceFloats;
  }
  __device__ __forceinline__ uint32_t Staging(int group) const {
    return base + kStages * (kTokens + kStageBytes) + group * (kPromptStaging / kGroups);
  }
  __device__ __forceinline__ uint32_t Full(uint32_t stage) const { return Barriers() + stage * 8; }
  __device__ __forceinline__ uint32_t Empty(uint32_t stage) const {
    return Barriers() + (kStages + stage) * 8;
  }
  __device__ __forceinline__ uint32_t SlotFull(uint32_t slot) const {
    return Barriers() + (2 * kStages + slot) * 8;
  }
  __device__ __forceinline__ uint32_t SlotEmpty(uint32_t slot) const {
    return Barriers() + (2 * kStages + kPromptSlots + slot) * 8;
  }
  __device__ __forceinline__ uint32_t Barriers() const {
    return base + kStages * (kTokens + kStageBytes) + kPromptStaging;
  }
};

/// The current slot and its barrier parity, packed in one register. Both are computed at each use,
/// which is cheaper than a second register.
class SlotPlace {
 public:
  __device__ __forceinline__ uint32_t stage() const {
    uint32_t at = at_;
    asm volatile("" : "+r"(at));
    return at & 3;
  }
  __device__ __forceinline__ uint32_t parity() const { return at_ >> 2; }
  __device__ __forceinline__ void Next() {
    at_ = stage() == kPromptSlots - 1 ? (at_ & 4) ^ 4 : at_ + 1;
  }

 private:
  uint32_t at_ = 0;
};
static_assert(kPromptSlots <= 4);

/// Synchronizes the 128 threads of a consumer warp group.
__device__ __forceinline__ void WarpGroupBarrier(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_RING_CUH_
