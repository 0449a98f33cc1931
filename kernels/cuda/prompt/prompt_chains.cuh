// A consumer warp group's products in e4m3 of two blocks of 64 rows, with scales every 128 k: the
// scaled sums of each 128 k are added up in fp32. A block's weights are loaded while the sums of
// the other block are added, and the scales while products are under way. Reads of shared memory
// are the bottleneck, so a stage's column scales are read once for both blocks.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_CHAINS_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_CHAINS_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/wgmma.cuh"
#include "kernels/cuda/prompt/prompt_sums.cuh"

namespace moert::cuda {

/// Consumer: PromptConsumer, whose stages are whole (HasWholeStages).
template <typename Consumer, typename Slot, int kColumns>
class PromptChains {
  static constexpr int kPairs = kColumns / 8;  // of columns that a lane has
  static constexpr bool kGateUp = Consumer::kOfGateUp;
  using Sums = float[2][kColumns / 2];

 public:
  __device__ __forceinline__ PromptChains(Consumer& of, const Slot& slot, Sums& d)
      : of_(of), d_(d), left_((slot.k64s + 1) / 2), same_(slot.same != 0) {}

  /// d = the products.
  __device__ __forceinline__ void Multiply() {
    ClearSums(d_);
    of_.AwaitStage();
    Load(0);
    if (same_) {
#pragma unroll 1
      while (left_ > 0) Step<true>();
    } else {
#pragma unroll 1
      while (left_ > 0) Step<false>();
    }
  }

 private:
  /// Loads the weights of block b of the current stage.
  __device__ __forceinline__ void Load(int b) { of_.LoadFragments(0, 0, b, unused_, fragments_); }
  __device__ __forceinline__ void Begin(uint32_t stage) {
    const uint64_t tokens = OperandDescriptor(of_.ring.Tokens(stage));
    PinRegisters(sums_);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WgmmaF8<kColumns>(sums_, fragments_.a[i], tokens + 2 * i, i > 0);
    }
    WgmmaCommit();
    PinRegisters(sums_);
  }
  __device__ __forceinline__ void Wait() {
    WgmmaWait<0>();
    PinRegisters(sums_);
  }
  __device__ __forceinline__ float OfRow(uint32_t stage, int row) const {
    return __uint_as_float(LoadShared4(of_.ring.Scales(stage, 0) + row * 4));
  }
  /// Reads the scales of the stage's columns. With kSame, down's are multiplied by the one scale of
  /// all rows.
  template <bool kSame>
  __device__ __forceinline__ void ReadColumns(uint32_t stage) {
    const uint32_t columns = of_.ring.Floats(stage, 0) + 8 * (of_.of.lane & 3);
    const float of_rows = kSame && !kGateUp ? OfRow(stage, of_.of.FirstRow(0)) : 1;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const uint2 two = LoadShared8(columns + 32 * j);
      column_[j][0] = __uint_as_float(two.x);
      column_[j][1] = __uint_as_float(two.y);
      if constexpr (kSame && !kGateUp) {
        column_[j][0] *= of_rows;
        column_[j][1] *= of_rows;
      }
    }
  }
  /// d += the sums times the scales of rows and columns.
  template <bool kSame>
  __device__ __forceinline__ void Add(int b, float first, float second) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float column = column_[j][i & 1];
        const float row = kSame || i < 2 ? first : second;
        const float factor = kSame && !kGateUp ? column : column * row;
        d_[b][4 * j + i] = fmaf(sums_[4 * j + i], factor, d_[b][4 * j + i]);
      }
    }
  }
  template <bool kSame>
  __device__ __forceinline__ void Step() {
    const uint32_t stage = of_.place.stage;
    Begin(stage);
    ReadColumns<kSame>(stage);
    float row[2][2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      row[b][0] = kSame && !kGateUp ? 1 : OfRow(stage, of_.of.FirstRow(b));
      row[b][1] = kSame ? 1 : OfRow(stage, of_.of.SecondRow(b));
    }
    Wait();
    Load(1);
    Add<kSame>(0, row[0][0], row[0][1]);
    Begin(stage);
    of_.place.Next();
    const bool more = --left_ > 0;
    if (more) of_.AwaitStage();
    Wait();
    of_.Release(stage);
    if (more) Load(0);
    Add<kSame>(1, row[1][0], row[1][1]);
  }

  Consumer& of_;
  Sums& d_;
  int left_;                          // stages
  const bool same_;                   // rows have the same scales, see PromptSlot
  typename Consumer::Scales unused_;  // these weights are multiplied as they are
  typename Consumer::Fragments fragments_;
  float column_[kPairs][2];
  float sums_[kColumns / 2];
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_CHAINS_CUH_
