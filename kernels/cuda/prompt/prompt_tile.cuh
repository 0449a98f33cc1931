// A consumer warp group's work of family P on a tile: one or two blocks of 64 rows of weights by
// all columns.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_TILE_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_TILE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/primitives/wgmma.cuh"
#include "kernels/cuda/prompt/prompt_chains.cuh"
#include "kernels/cuda/prompt/prompt_imported.cuh"
#include "kernels/cuda/prompt/prompt_int8.cuh"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_sums.cuh"
#include "kernels/cuda/prompt/prompt_warp.cuh"
#include "kernels/cuda/prompt/prompt_weights.cuh"

namespace moert::cuda {

template <Packing kPacking, bool kGateUp, int kMost>
struct PromptConsumer {
  using Ring = PromptRing<kPacking, kMost>;
  static constexpr int kGroups = PromptWarpGroups(kPacking, kMost);
  using Warp = PromptWarp<kGateUp, kMost, kGroups>;
  static constexpr int kBlocks = Warp::kBlocks;
  static constexpr bool kHalves = Warp::kHalves;
  static constexpr bool kImported = IsImported(kPacking);
  static constexpr bool k8Bits = Is8Bit(kPacking);
  static constexpr bool kOfGateUp = kGateUp;
  static constexpr bool kF8 = kPacking == Packing::kF8;
  static constexpr bool kE4m3 = IsE4m3(kPacking);
  using Sum = std::conditional_t<kE4m3, float, int32_t>;  // of products in 8 bits
  /// With four groups, registers hold the fragments of only one piece: one half is made while the
  /// other is multiplied.
  static constexpr int kParts = kGroups == 4 ? 2 : PromptParts(kPacking);
  static constexpr int kFragments = kGroups == 4 ? 1 : 2;
  using Scales = std::conditional_t<
      k8Bits, Int8RowScales<kPacking>,
      std::conditional_t<kImported, ImportedRowScales<kPacking, Ring::kRowBlocks>,
                         RowScales<kPacking, Ring::kRowBlocks>>>;
  using Fragments =
      std::conditional_t<k8Bits, Int8Fragments<kPacking, kHalves, kParts>,
                         std::conditional_t<kImported, ImportedFragments<kPacking, kHalves, kParts>,
                                            StageFragments<kPacking, kHalves, kParts>>>;
  static constexpr bool kScaled = kPacking != Packing::kBf16;
  static constexpr int kLaneBytes =
      kPacking == Packing::kW3 || kPacking == Packing::kW2 ? 4 : K64Bytes(kPacking) / 128;
  template <int kColumns>
  using Sums = float[kBlocks][kColumns / 2];

  const Ring ring;
  Warp of;
  RingPlace<Ring::kStages> place;

  __device__ __forceinline__ PromptConsumer(const Ring& r, int g, int w, int l)
      : ring(r), of(g, w, l) {}

  /// Keeps the compiler from computing addresses once for all tiles and holding them in registers.
  __device__ __forceinline__ void Forget() { asm volatile("" : "+r"(of.lane)::"memory"); }

  __device__ __forceinline__ void Release(uint32_t stage) const {
    if (of.lane == 0) Arrive(ring.Empty(stage));
  }
  __device__ __forceinline__ void AwaitStage() const {
    Await(ring.Full(place.stage), place.parity);
    if constexpr (kGateUp) FenceAsyncProxyShared();  // for the gathered rows
  }
  __device__ __forceinline__ void OpenScales(const PromptSlot<kMost>& slot,
                                             Scales (&scales)[kBlocks]) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kImported) {
        scales[b].Open(slot.form, of.FirstRow(b), of.SecondRow(b), of.Matrix(b));
      } else if constexpr (kScaled) {
        scales[b].Open(of.FirstRow(b), of.SecondRow(b));
      }
    }
  }
  /// Loads the fragments of block b of a piece.
  __device__ __forceinline__ void LoadFragments(int part, int piece, int b, const Scales& scales,
                                                Fragments& f) const {
    const uint32_t first = ring.Weights(place.stage) + piece * Ring::kPiece +
                           of.RowBlock(b) * Ring::kRun + of.lane * kLaneBytes;
    f.Load(part, first, first + Warp::kOfGate * Ring::kRun, of.half, scales);
  }

  template <int kColumns>
  __device__ __forceinline__ void Multiply(const PromptSlot<kMost>& slot, Sums<kColumns>& d) {
    if constexpr (kF8 && kBlocks == 1 && kParts == 1) {
      MultiplyTwoSumsAhead<kColumns>(slot, d);
    } else if constexpr (kE4m3 && kBlocks == 2) {
      PromptChains<PromptConsumer, PromptSlot<kMost>, kColumns>(*this, slot, d).Multiply();
    } else if constexpr (kPacking == Packing::kW4A8 || kE4m3) {
      MultiplyTwoSums<kColumns>(slot, d);
    } else if constexpr (k8Bits) {
      MultiplyInt8<kColumns>(slot, d);
    } else {
      MultiplyBf16<kColumns>(slot, d);
    }
  }

  /// Loads a part of the weights of block b in stage place.stage. whole: the stage has 128 k, not
  /// 64.
  __device__ __forceinline__ void Load8Bits(int part, int b, bool whole, const Scales& scales,
                                            Fragments& f) const {
    LoadFragments(part, 0, b, scales, f);
    if constexpr (kE4m3) {
#pragma unroll
      for (int i = 2; i < 4; ++i) {  // stale bytes there may be NaN
        if (i * kParts / 4 != part) continue;
#pragma unroll
        for (int q = 0; q < 4; ++q) f.a[i][q] = whole ? f.a[i][q] : 0;
      }
    }
  }
  /// Issues the products of a part. They are added to the sums, or (kE4m3) replace them.
  template <int kColumns>
  __device__ __forceinline__ void Issue8Bits(int part, uint32_t stage, const Fragments& f,
                                             Sum (&sums)[kColumns / 2]) const {
    const uint64_t tokens = OperandDescriptor(ring.Tokens(stage));
    PinRegisters(sums);
    WgmmaFence();
#pragma unroll
    for (int i = part * 4 / kParts; i < (part + 1) * 4 / kParts; ++i) {
      if constexpr (kE4m3) {
        WgmmaF8<kColumns>(sums, f.a[i], tokens + 2 * i, i > 0);
      } else {
        Wgmma<kColumns>(sums, f.a[i], tokens + 2 * i);
      }
    }
    WgmmaCommit();
    PinRegisters(sums);
  }
  template <int kColumns>
  __device__ __forceinline__ void Begin8Bits(int b, bool whole, const Scales& scales, Fragments& f,
                                             Sum (&sums)[kColumns / 2]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part > 0) WgmmaWait<1>();
      Load8Bits(part, b, whole, scales, f);
      Issue8Bits<kColumns>(part, place.stage, f, sums);
    }
  }

  /// d = the sums times the scales of rows and columns.
  template <int kColumns>
  __device__ __forceinline__ void MultiplyInt8(const PromptSlot<kMost>& slot, Sums<kColumns>& d) {
    const int stages = (slot.k64s + 1) / 2;
    int32_t sums[kBlocks][kColumns / 2] = {};
    Scales scales[kBlocks];
    OpenScales(slot, scales);
    Fragments fragments[kFragments];
    uint32_t before = 0;
    bool under_way = false;
    const auto step = [&](int which) {
      AwaitStage();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        Begin8Bits<kColumns>(b, true, scales[b], fragments[kBlocks == 2 ? b : which % kFragments],
                             sums[b]);
        WgmmaWait<1>();
        if (b == 0 && under_way) Release(before);
      }
      before = place.stage;
      under_way = true;
      place.Next();
    };
    Await(ring.Full(place.stage), place.parity);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) scales[b].Read(ring.Scales(place.stage, 0));
    int k = 0;
#pragma unroll 1
    for (; k + 1 < stages; k += 2) {
      step(0);
      step(1);
    }
    if (k < stages) {
      WgmmaWait<0>();
      PinBlocks(sums);
      step(0);
    }
    WgmmaWait<0>();
    PinBlocks(sums);
    Release(before);
    ApplyScales<kColumns>(of.lane, slot.scales_of, scales, sums, d);
  }

  /// Sums each stage separately and adds its sums to d in fp32: times the scales of rows and
  /// columns (w4a8, fp8_b128), or unscaled until the end (w8a8_fp8).
  template <int kColumns>
  __device__ __forceinline__ void MultiplyTwoSums(const PromptSlot<kMost>& slot,
                                                  Sums<kColumns>& d) {
    const int stages = (slot.k64s + 1) / 2;
    ClearSums(d);
    Scales scales[kBlocks];
    OpenScales(slot, scales);
    Fragments fragments[kBlocks];
    Sum sums[kBlocks][kColumns / 2];
    ClearSums(sums);
#pragma unroll 1
    for (int k = 0; k < stages; ++k) {
      const uint32_t stage = place.stage;
      AwaitStage();
      if constexpr (!kE4m3) ClearSums(sums);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        Begin8Bits<kColumns>(b, 2 * k + 1 < slot.k64s, scales[b], fragments[b], sums[b]);
        if (!kF8 || k == 0) scales[b].Read(ring.Scales(stage, 0));
      }
      AddStage<kColumns, 0>(stage, scales[0], sums[0], d[0]);
      if constexpr (kBlocks == 2) AddStage<kColumns, 1>(stage, scales[1], sums[1], d[1]);
      Release(stage);
      place.Next();
    }
    if constexpr (kF8) ApplyScales<kColumns>(of.lane, slot.scales_of, scales, d, d);
  }
  /// The same for one block of w8a8_fp8: a stage's weights are loaded while the stage before it is
  /// multiplied.
  template <int kColumns>
  __device__ __forceinline__ void MultiplyTwoSumsAhead(const PromptSlot<kMost>& slot,
                                                       Sums<kColumns>& d) {
    const int stages = (slot.k64s + 1) / 2;
    ClearSums(d);
    Scales scales[kBlocks];
    OpenScales(slot, scales);
    Fragments fragments[2];
    Sum sums[kBlocks][kColumns / 2];
    ClearSums(sums);
    const auto load = [&](int k, Fragments& f) {
      AwaitStage();
      Load8Bits(0, 0, 2 * k + 1 < slot.k64s, scales[0], f);
    };
    const auto step = [&](int k, int which) {
      const uint32_t stage = place.stage;
      Issue8Bits<kColumns>(0, stage, fragments[which], sums[0]);
      if (k == 0) scales[0].Read(ring.Scales(stage, 0));
      place.Next();
      if (k + 1 < stages) load(k + 1, fragments[which ^ 1]);
      AddStage<kColumns, 0>(stage, scales[0], sums[0], d[0]);
      Release(stage);
    };
    load(0, fragments[0]);
    int k = 0;
#pragma unroll 1
    for (; k + 1 < stages; k += 2) {
      step(k, 0);
      step(k + 1, 1);
    }
    if (k < stages) step(k, 0);
    ApplyScales<kColumns>(of.lane, slot.scales_of, scales, d, d);
  }
  /// Waits for block kBlock's products and adds them.
  template <int kColumns, int kBlock>
  __device__ __forceinline__ void AddStage(uint32_t stage, const Scales& scales,
                                           Sum (&sums)[kColumns / 2],
                                           float (&d)[kColumns / 2]) const {
    WgmmaWait<kBlocks - 1 - kBlock>();
    PinRegisters(sums);
    if constexpr (kF8) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) d[i] += sums[i];
      return;
    }
    AddScaled<kColumns>(of.lane, scales.f, ring.Floats(stage, 0), sums, d);
  }

  /// State of the bf16 products of a tile.
  struct Bf16Progress {
    Scales scales[kBlocks];
    int group_k64s;       // of a scale group
    int left = 0;         // of the current one
    uint32_t before = 0;  // the stage whose products are under way
    bool under_way = false;
  };
  static constexpr bool kScaleGroups = kScaled && !kImported;

  /// Begins a scale group: waits for the products under way and converts the sums to its units.
  template <int kColumns>
  __device__ __forceinline__ void TurnSums(const float (&ratio)[kBlocks][2], uint32_t floats,
                                           Bf16Progress& at, Sums<kColumns>& d) const {
    WgmmaWait<0>();
    PinBlocks(d);
    if (at.under_way) Release(at.before);
    at.under_way = false;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (HasZeros(kPacking)) {
        ShiftSums<kColumns>(of.lane, ratio[b], at.scales[b].shift, floats, d[b]);
      } else {
        ScaleSums<kColumns>(ratio[b], d[b]);
      }
    }
  }
  /// Reads the scales of the group that begins with part `part` of a piece.
  __device__ __forceinline__ void TurnScales(const PromptSlot<kMost>& slot, int part,
                                             uint32_t in_stage, Bf16Progress& at,
                                             float (&ratio)[kBlocks][2]) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kImported) {
        at.scales[b].Turn(slot.form, in_stage, part, ratio[b]);
      } else if constexpr (kScaled) {
        at.scales[b].Turn(in_stage, ratio[b]);
      }
    }
  }

  /// Multiplies piece `k` (64 k), which is piece kPiece of its stage. A block's products run while
  /// the fragments of the next are made. With one block, f[which] alternates between pieces.
  template <int kColumns, int kPiece>
  __device__ __forceinline__ void StepBf16(const PromptSlot<kMost>& slot, int k, Bf16Progress& at,
                                           Fragments (&f)[kFragments], int which,
                                           Sums<kColumns>& d) {
    const uint32_t stage = place.stage;
    const uint32_t in_stage = ring.Scales(stage, kPiece);
    bool turns = kScaleGroups && at.left == 0;
    if constexpr (kScaleGroups) at.left = (turns ? at.group_k64s : at.left) - 1;
    if constexpr (kPiece == 0) AwaitStage();
    const uint64_t tokens = OperandDescriptor(ring.Tokens(stage) + kPiece * kColumns * 128);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kImported) {
        turns = Scales::Begins(slot.form, k, part);
      } else if (part != 0) {
        turns = false;
      }
      float ratio[kBlocks][2];
      if (turns) TurnScales(slot, part, in_stage, at, ratio);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        Fragments& of_block = f[kBlocks == 2 ? b : which % kFragments];
        if constexpr (kImported) {
          if (part == 0) at.scales[b].ReadStage(in_stage);
        }
        LoadFragments(part, kPiece, b, at.scales[b], of_block);
        if (b == 0 && turns) TurnSums<kColumns>(ratio, ring.Floats(stage, kPiece), at, d);
        PinRegisters(d[b]);
        WgmmaFence();
#pragma unroll
        for (int i = part * 4 / kParts; i < (part + 1) * 4 / kParts; ++i) {
          Wgmma<kColumns>(d[b], of_block.a[i], tokens + 2 * i);
        }
        WgmmaCommit();
        PinRegisters(d[b]);
        WgmmaWait<1>();
        if (kPiece == 0 && part == 0 && b == 0) {
          if (at.under_way) Release(at.before);
          at.under_way = false;
        }
      }
    }
  }
  /// Goes on to the next stage, when all products of this one are issued.
  __device__ __forceinline__ void LeaveStage(Bf16Progress& at) {
    at.before = place.stage;
    at.under_way = true;
    place.Next();
  }

  template <int kColumns>
  __device__ __forceinline__ void MultiplyBf16(const PromptSlot<kMost>& slot, Sums<kColumns>& d) {
    constexpr int kPieces = Ring::kPieces;
    const int k64s = slot.k64s;
    ClearSums(d);
    Fragments fragments[kFragments];
    Bf16Progress at;
    OpenScales(slot, at.scales);
    at.group_k64s = slot.group_k64s;
    int k = 0;
#pragma unroll 1
    for (; k + 1 < k64s; k += 2) {
      StepBf16<kColumns, 0>(slot, k, at, fragments, 0, d);
      if constexpr (kPieces == 1) LeaveStage(at);
      StepBf16<kColumns, kPieces - 1>(slot, k + 1, at, fragments, 1, d);
      LeaveStage(at);
    }
    if (k < k64s) {
      // No product may be under way where branches join: the compiler would wait for it anyway.
      WgmmaWait<0>();
      PinBlocks(d);
      StepBf16<kColumns, 0>(slot, k, at, fragments, 0, d);
      LeaveStage(at);
    }
    WgmmaWait<0>();
    PinBlocks(d);
    Release(at.before);
    if constexpr (kScaled) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ScaleSums<kColumns>(at.scales[b].f, d[b]);
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_TILE_CUH_
