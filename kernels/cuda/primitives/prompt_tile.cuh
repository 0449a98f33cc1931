// What a consumer warp group of family P does with a tile: 64 rows of weights by all columns, and
// where the results go.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_TILE_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_TILE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/primitives/prompt_imported.cuh"
#include "kernels/cuda/primitives/prompt_int8.cuh"
#include "kernels/cuda/primitives/prompt_ring.cuh"
#include "kernels/cuda/primitives/prompt_sums.cuh"
#include "kernels/cuda/primitives/prompt_weights.cuh"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace moert::cuda {

template <Packing kPacking, bool kGateUp, int kMost>
struct PromptConsumer {
  using Ring = PromptRing<kPacking, kMost>;
  static constexpr bool kImported = IsImported(kPacking);
  static constexpr bool kInt = IsInt8(kPacking);
  static constexpr int kParts = PromptParts(kPacking);
  using Scales = std::conditional_t<
      kInt, Int8RowScales<kPacking>,
      std::conditional_t<kImported, ImportedRowScales<kPacking>, RowScales<kPacking>>>;
  using Fragments =
      std::conditional_t<kInt, Int8Fragments<kPacking, kGateUp>,
                         std::conditional_t<kImported, ImportedFragments<kPacking, kGateUp>,
                                            StageFragments<kPacking, kGateUp>>>;
  static constexpr bool kScaled = kPacking != Packing::kBf16;
  static constexpr int kLaneBytes =
      kPacking == Packing::kW3 || kPacking == Packing::kW2 ? 4 : K64Bytes(kPacking) / 128;

  const Ring ring;
  const int group;  // of two
  const int warp;   // of four
  int lane;
  RingPlace<Ring::kStages> place;
  uint32_t first, second;  // of the lane in a stage's weights
  int half;

  __device__ __forceinline__ PromptConsumer(const Ring& r, int g, int w, int l)
      : ring(r), group(g), warp(w), lane(l) {
    const int block = kGateUp ? 2 * g + (w >> 1) : 4 * g + w;
    half = w & 1;
    first = block * Ring::kRun + l * kLaneBytes;
    second = first + 4 * Ring::kRun;
  }

  /// Addresses of one tile are not worth registers in another: keeps the compiler from computing
  /// them once for all tiles.
  __device__ __forceinline__ void Forget() { asm volatile("" : "+r"(lane)::"memory"); }

  __device__ __forceinline__ void Release(uint32_t stage) const {
    if (lane == 0) Arrive(ring.Empty(stage));
  }

  /// The lane's two rows' scales.
  __device__ __forceinline__ void OpenScales(const PromptSlot<kMost>& slot, Scales* scales) const {
    const int g = lane >> 2;
    if constexpr (kImported) {
      const int block = kGateUp ? 2 * group + (warp >> 1) : 4 * group + warp;
      const int row = block * 16 + g + (kGateUp ? half * 8 : 0);
      scales->Open(slot.form, row, kGateUp ? row + 64 : row + 8);
    } else if constexpr (kScaled) {
      const int block = slot.row_tile * (kGateUp ? 4 : 8) +
                        (kGateUp ? 2 * group + (warp >> 1) : 4 * group + warp);
      const uint8_t* of = slot.scales + min(block, slot.row_blocks - 1) * 32 + g * 2;
      const uint8_t* lower = of + (kGateUp ? half * 16 : 0);
      const uint8_t* upper = kGateUp ? lower + slot.second_scales : of + 16;
      if constexpr (kInt) {
        scales->Open(lower, upper);
      } else {
        if constexpr (HasZeros(kPacking)) scales->zeros = slot.zero_distance;
        scales->at[0] = lower;
        scales->at[1] = upper;
      }
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void Multiply(const PromptSlot<kMost>& slot,
                                           float (&d)[kColumns / 2]) {
    if constexpr (kPacking == Packing::kW4A8) {
      MultiplyInt8Groups<kColumns>(slot, d);
    } else if constexpr (kInt) {
      MultiplyInt8<kColumns>(slot, d);
    } else {
      MultiplyBf16<kColumns>(slot, d);
    }
  }

  /// d = the sums times the scales of rows and columns.
  template <int kColumns>
  __device__ __forceinline__ void MultiplyInt8(const PromptSlot<kMost>& slot,
                                               float (&d)[kColumns / 2]) {
    const int stages = (slot.k64s + 1) / 2;
    int32_t sums[kColumns / 2];
#pragma unroll
    for (int32_t& v : sums) v = 0;
    Scales scales;
    OpenScales(slot, &scales);
    Fragments fragments[2];
    uint32_t before = 0;
    bool under_way = false;
    const auto step = [&](Fragments& f) {
      const uint32_t stage = place.stage;
      Await(ring.Full(stage), place.parity);
      if constexpr (kGateUp) FenceAsyncProxyShared();  // of the gathered rows
      f.Load(ring.Weights(stage) + first, ring.Weights(stage) + second, half);
      PinRegisters(sums);
      WgmmaFence();
      const uint64_t b = OperandDescriptor(ring.Tokens(stage));
#pragma unroll
      for (int i = 0; i < 4; ++i) Wgmma<kColumns>(sums, f.a[i], b + 2 * i);
      WgmmaCommit();
      PinRegisters(sums);
      WgmmaWait<1>();
      if (under_way) Release(before);
      before = stage;
      under_way = true;
      place.Next();
    };
    int k = 0;
#pragma unroll 1
    for (; k + 1 < stages; k += 2) {
      step(fragments[0]);
      step(fragments[1]);
    }
    if (k < stages) {
      WgmmaWait<0>();
      PinRegisters(sums);
      step(fragments[0]);
    }
    WgmmaWait<0>();
    PinRegisters(sums);
    Release(before);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float column = slot.scales_of[8 * j + 2 * (lane & 3) + (c & 1)];
        d[4 * j + c] = static_cast<float>(sums[4 * j + c]) * (scales.f[c / 2] * column);
      }
    }
  }

  /// d = the sums of every stage, times the scales of its rows and columns.
  template <int kColumns>
  __device__ __forceinline__ void MultiplyInt8Groups(const PromptSlot<kMost>& slot,
                                                     float (&d)[kColumns / 2]) {
    const int stages = (slot.k64s + 1) / 2;
    const int64_t stride = int64_t{slot.row_blocks} * 32;
#pragma unroll
    for (float& v : d) v = 0;
    Scales scales;
    OpenScales(slot, &scales);
    Fragments fragments;
#pragma unroll 1
    for (int k = 0; k < stages; ++k) {
      const uint32_t stage = place.stage;
      Await(ring.Full(stage), place.parity);
      if constexpr (kGateUp) FenceAsyncProxyShared();  // of the gathered rows
      fragments.Load(ring.Weights(stage) + first, ring.Weights(stage) + second, half);
      scales.Take(stride, k + 1 < stages);
      int32_t sums[kColumns / 2];
#pragma unroll
      for (int32_t& v : sums) v = 0;
      PinRegisters(sums);
      WgmmaFence();
      const uint64_t b = OperandDescriptor(ring.Tokens(stage));
#pragma unroll
      for (int i = 0; i < 4; ++i) Wgmma<kColumns>(sums, fragments.a[i], b + 2 * i);
      WgmmaCommit();
      PinRegisters(sums);
      WgmmaWait<0>();
      PinRegisters(sums);
      const uint32_t columns = ring.Scales(stage) + 8 * (lane & 3);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const uint2 two = LoadShared8(columns + 32 * j);
        const float of[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& to = d[4 * j + c];
          to = fmaf(static_cast<float>(sums[4 * j + c]), scales.f[c / 2] * of[c & 1], to);
        }
      }
      Release(stage);
      place.Next();
    }
  }

  /// How far the products of a tile are.
  struct Bf16Progress {
    Scales scales;
    int64_t stride;       // from a group's scales to the next
    int group_k64s;       // stages of a scale group
    int left = 0;         // of the current one
    int groups_left;      // that are still to be fetched
    uint32_t before = 0;  // the stage whose products are under way
    bool under_way = false;
  };
  static constexpr bool kGroups = kScaled && !kImported;  // scales are brought by this warp

  /// Stage k; `f` is free.
  template <int kColumns>
  __device__ __forceinline__ void StepBf16(const PromptSlot<kMost>& slot, int k, Bf16Progress& at,
                                           Fragments& f, float (&d)[kColumns / 2]) {
    const uint32_t stage = place.stage;
    float ratio[2] = {1, 1};
    bool turns = kGroups && at.left == 0;
    if constexpr (kGroups) {
      if (turns) {
        at.scales.Turn(ratio);
        if (--at.groups_left > 0) at.scales.Fetch(at.stride);
        at.left = at.group_k64s;
      }
      --at.left;
    }
    Await(ring.Full(stage), place.parity);
    if constexpr (kGateUp) FenceAsyncProxyShared();  // of the gathered rows
    const uint64_t b = OperandDescriptor(ring.Tokens(stage));
    if constexpr (kImported) at.scales.ReadStage(ring.Scales(stage));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kImported) {
        turns = at.scales.Begins(slot.form, k, part);
        if (turns) at.scales.Turn(slot.form, ring.Scales(stage), part, ratio);
        f.Load(part, ring.Weights(stage) + first, ring.Weights(stage) + second, half, at.scales);
      } else {
        f.Load(ring.Weights(stage) + first, ring.Weights(stage) + second, half, at.scales.unit,
               at.scales.offset);
      }
      if (turns && (part > 0 || k > 0)) {
        WgmmaWait<0>();
        PinRegisters(d);
        if (at.under_way) Release(at.before);
        at.under_way = false;
        if constexpr (!HasZeros(kPacking)) ScaleSums<kColumns>(ratio, d);
      }
      if constexpr (HasZeros(kPacking)) {
        if (turns) ShiftSums<kColumns>(lane, ratio, at.scales.shift, ring.Scales(stage), d);
      }
      PinRegisters(d);
      WgmmaFence();
#pragma unroll
      for (int i = part * 4 / kParts; i < (part + 1) * 4 / kParts; ++i) {
        Wgmma<kColumns>(d, f.a[i], b + 2 * i);
      }
      WgmmaCommit();
      PinRegisters(d);
    }
    WgmmaWait<kParts>();
    if (at.under_way) Release(at.before);
    at.before = stage;
    at.under_way = true;
    place.Next();
  }

  template <int kColumns>
  __device__ __forceinline__ void MultiplyBf16(const PromptSlot<kMost>& slot,
                                               float (&d)[kColumns / 2]) {
    const int k64s = slot.k64s;
#pragma unroll
    for (float& v : d) v = 0;
    Fragments fragments[2];
    Bf16Progress at;
    OpenScales(slot, &at.scales);
    at.group_k64s = kGroups ? slot.group_k64s : k64s;
    at.stride = int64_t{slot.row_blocks} * 32;
    if constexpr (kGroups) at.scales.Fetch(at.stride);
    at.groups_left = kGroups ? (k64s + at.group_k64s - 1) / at.group_k64s : 0;
    int k = 0;
#pragma unroll 1
    for (; k + 1 < k64s; k += 2) {
      StepBf16<kColumns>(slot, k, at, fragments[0], d);
      StepBf16<kColumns>(slot, k + 1, at, fragments[1], d);
    }
    if (k < k64s) {
      // Nothing may be under way where paths of the program meet: it would be waited for anyway.
      WgmmaWait<0>();
      PinRegisters(d);
      StepBf16<kColumns>(slot, k, at, fragments[0], d);
    }
    WgmmaWait<0>();
    PinRegisters(d);
    Release(at.before);
    if constexpr (kScaled) ScaleSums<kColumns>(at.scales.f, d);
  }

  /// act(gate) * up, silu or gelu's tanh form.
  __device__ __forceinline__ static float Activated(bool silu, float gate, float up) {
    const float x = silu ? gate : 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
    return __fdividef(gate, 1.0f + __expf(-x)) * up;
  }

  /// act(gate) * up as floats, before they are quantized.
  template <int kColumns>
  __device__ __forceinline__ void StoreWideH(const PromptSlot<kMost>& slot, bool silu,
                                             float* wide_h, int64_t stride,
                                             const float (&d)[kColumns / 2]) const {
    const int block = slot.row_tile * 4 + 2 * group + (warp >> 1);
    if (block >= slot.row_blocks) return;
    float* const to = wide_h + slot.h_row * stride + block * 16 + half * 8 + (lane >> 2);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * j + 2 * (lane & 3) + c;
        if (column < slot.count) {
          to[column * stride] = Activated(silu, d[4 * j + c], d[4 * j + 2 + c]);
        }
      }
    }
  }

  /// act(gate) * up as bf16 rows of h: of this warp eight channels of every column.
  template <int kColumns>
  __device__ __forceinline__ void StoreH(const PromptSlot<kMost>& slot, bool silu,
                                         const float (&d)[kColumns / 2]) const {
    const uint32_t staging = ring.Staging(group);
    const int block = slot.row_tile * 4 + 2 * group + (warp >> 1);
    const bool there = block < slot.row_blocks;  // else padding up to whole 64: zeros
    uint8_t* const h = slot.h + int64_t{slot.row_tile} * slot.columns * 128;
    constexpr int kAtOnce = 128;
#pragma unroll
    for (int from = 0; from < kColumns; from += kAtOnce) {
      constexpr int kTo = kColumns;
      WarpGroupBarrier(group);  // what lay there was read
#pragma unroll
      for (int c = from; c < from + kAtOnce && c < kTo; c += 16) {
        uint32_t v[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float* at = d + (c / 8 + j) * 4;
          float two[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            two[i] = there ? Activated(silu, at[i], at[2 + i]) : 0.0f;
          }
          v[j] = PackBf16(two[0], two[1]);
        }
        const uint32_t row = c - from + (lane & 15);
        StoreTransposed2(staging + row * 64 + ((warp ^ ((row >> 1) & 3)) * 16), v[0], v[1]);
      }
      WarpGroupBarrier(group);
      const int thread = warp * 32 + lane;
#pragma unroll
      for (int i = 0; i < kAtOnce / 32; ++i) {
        const uint32_t row = i * 32 + thread / 4;
        const uint32_t piece = thread & 3;
        if (from + static_cast<int>(row) < kColumns) {
          const uint4 v = LoadShared16(staging + row * 64 + ((piece ^ ((row >> 1) & 3)) * 16));
          const uint32_t column = from + row;
          *reinterpret_cast<uint4*>(h + column * 128 +
                                    (((4 * group + piece) ^ (column & 7)) * 16)) = v;
        }
      }
    }
  }

  /// bf16 rows of out, by slot.
  template <int kColumns>
  __device__ __forceinline__ void StoreOut(const PromptSlot<kMost>& slot, uint16_t* out,
                                           int64_t stride, const float (&d)[kColumns / 2]) const {
    const uint32_t staging = ring.Staging(group);
    constexpr int kAtOnce = 64;
    const int thread = warp * 32 + lane;
    const uint32_t piece = thread & 7;
    const int64_t channel = slot.row_tile * 128 + group * 64 + piece * 8;
    const bool there = channel < stride;
#pragma unroll
    for (int from = 0; from < kColumns; from += kAtOnce) {
      WarpGroupBarrier(group);
#pragma unroll
      for (int c = from; c < from + kAtOnce && c < kColumns; c += 16) {
        const float* at = d + c / 8 * 4;
        const uint32_t row = c - from + (lane & 7) + ((lane >> 4) * 8);
        const uint32_t of = 2 * warp + ((lane >> 3) & 1);
        StoreTransposed4(staging + row * 128 + ((of ^ (row & 7)) * 16), PackBf16(at[0], at[1]),
                         PackBf16(at[2], at[3]), PackBf16(at[4], at[5]), PackBf16(at[6], at[7]));
      }
      WarpGroupBarrier(group);
#pragma unroll
      for (int i = 0; i < kAtOnce / 16; ++i) {
        const uint32_t row = i * 16 + thread / 8;
        const int column = from + static_cast<int>(row);
        if (column < slot.count && column < kColumns && there) {
          const uint4 v = LoadShared16(staging + row * 128 + ((piece ^ (row & 7)) * 16));
          *reinterpret_cast<uint4*>(out + slot.rows[column] * stride + channel) = v;
        }
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_TILE_CUH_
