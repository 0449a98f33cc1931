// A consumer warp group's products of two blocks of 64 rows in e4m3, with scales every 128 k: the
// sums of 128 k are added to others in fp32. Columns are two halves: what one has is added while
// the other is multiplied, so that the tensor cores do not wait.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_HALVES_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_HALVES_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/wgmma.cuh"
#include "kernels/cuda/prompt/prompt_sums.cuh"

namespace moert::cuda {

/// Consumer: PromptConsumer.
template <typename Consumer, typename Slot, int kColumns>
class PromptHalves {
  static constexpr int kLeft = (kColumns / 8 + 1) / 2 * 8, kRight = kColumns - kLeft;
  using Sums = float[2][kColumns / 2];

 public:
  __device__ __forceinline__ PromptHalves(Consumer& of, const Slot& slot, Sums& d)
      : of_(of), slot_(slot), d_(d) {}

  /// d = the products.
  __device__ __forceinline__ void Multiply() {
    const int stages = (slot_.k64s + 1) / 2;
    ClearSums(d_);
    of_.OpenScales(slot_, scales_);
#pragma unroll 1
    for (int k = 0; k < stages; ++k) Step(k);
  }

 private:
  __device__ __forceinline__ void Load(int k, int b) {
    of_.Load8Bits(0, b, 2 * k + 1 < slot_.k64s, scales_[b], fragments_[b]);
    scales_[b].Read(of_.ring.Scales(of_.place.stage, 0));
  }
  /// The products of a half's columns, kFrom the first of them, with a block's weights begin.
  template <int kFrom, int kSums, typename Fragments>
  __device__ __forceinline__ void Begin(float (&sums)[kSums], const Fragments& f) {
    const uint64_t tokens = OperandDescriptor(of_.ring.Tokens(of_.place.stage) + kFrom * 128);
    PinRegisters(sums);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) WgmmaF8<2 * kSums>(sums, f.a[i], tokens + 2 * i, i > 0);
    WgmmaCommit();
    PinRegisters(sums);
  }
  /// Waits for what of a half is under way, and adds it to the sums of block b.
  template <int kFrom, int kPending, int kSums>
  __device__ __forceinline__ void Add(uint32_t stage, int b, float (&sums)[kSums]) {
    WgmmaWait<kPending>();
    PinRegisters(sums);
    const uint32_t columns = of_.ring.Floats(stage, 0) + 4 * kFrom + 8 * (of_.of.lane & 3);
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const uint2 two = LoadShared8(columns + 32 * j);
      const float of_column[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& to = d_[b][kFrom / 2 + 4 * j + c];
        to = fmaf(sums[4 * j + c], scales_[b].f[c / 2] * of_column[c & 1], to);
      }
    }
  }
  /// Nothing is under way between two stages: the compiler would wait for every product.
  __device__ __forceinline__ void Step(int k) {
    const uint32_t stage = of_.place.stage;
    of_.AwaitStage();
    Load(k, 0);
    Begin<0>(left_, fragments_[0]);
    Begin<kLeft>(right_, fragments_[0]);
    Load(k, 1);
    Add<0, 1>(stage, 0, left_);
    Begin<0>(left_, fragments_[1]);
    Add<kLeft, 1>(stage, 0, right_);
    Begin<kLeft>(right_, fragments_[1]);
    Add<0, 1>(stage, 1, left_);
    Add<kLeft, 0>(stage, 1, right_);
    of_.Release(stage);
    of_.place.Next();
  }

  Consumer& of_;
  const Slot& slot_;
  Sums& d_;
  typename Consumer::Scales scales_[2];
  typename Consumer::Fragments fragments_[2];
  float left_[kLeft / 2], right_[kRight / 2];
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_HALVES_CUH_
