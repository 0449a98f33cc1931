// Packed weights -> bf16 A fragments, by masks and shifts alone: the bits of a weight become
// mantissa bits of a power of two. Scale, zero and that power are applied to the sums of a group,
// where they cost one fused multiply-add and not one a weight. For integer products, weights become
// bytes. Layouts: docs/reference/layout.md.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_DEQUANT_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_DEQUANT_CUH_

#include <cstdint>

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

constexpr uint32_t kMagic = 0x43004300u;  // two bf16 of 128
constexpr int kMagicOffset = 128;

/// a * b + c of two bf16, rounded once.
__device__ __forceinline__ uint32_t FmaBf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ uint32_t MulBf16(uint32_t a, uint32_t b) {
  constexpr uint32_t kMinusZeros = 0x80008000u;
  return FmaBf16(a, b, kMinusZeros);
}
__device__ __forceinline__ uint32_t AddBf16(uint32_t a, uint32_t b) {
  constexpr uint32_t kOnes = 0x3f803f80u;
  return FmaBf16(a, kOnes, b);
}

/// (w & mask) | or_bits in one instruction.
__device__ __forceinline__ uint32_t MaskOr(uint32_t w, uint32_t mask, uint32_t or_bits) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(w), "r"(mask), "r"(or_bits));
  return r;
}

/// One w4 word, 16 k: 128 + u.
__device__ __forceinline__ void FragmentW4(uint32_t w, uint32_t (&a)[4]) {
  constexpr uint32_t kMask = 0x000f000fu;
  a[0] = MaskOr(w, kMask, kMagic);
  a[1] = MaskOr(w >> 4, kMask, kMagic);
  a[2] = MaskOr(w >> 8, kMask, kMagic);
  a[3] = MaskOr(w >> 12, kMask, kMagic);
}

/// The two w8 words of 16 k, for two products: `low` is 128 + the seven low bits; bit 7 falls on
/// the exponent's last bit, so `high` is 128 or 256. low + high = 256 + u.
__device__ __forceinline__ void FragmentW8(uint32_t w0, uint32_t w1, uint32_t (&low)[4],
                                           uint32_t (&high)[4]) {
  constexpr uint32_t kLow = 0x007f007fu, kHigh = 0x00800080u;
  low[0] = MaskOr(w0, kLow, kMagic);
  low[1] = MaskOr(w1, kLow, kMagic);
  low[2] = MaskOr(w0 >> 8, kLow, kMagic);
  low[3] = MaskOr(w1 >> 8, kLow, kMagic);
  high[0] = MaskOr(w0, kHigh, kMagic);
  high[1] = MaskOr(w1, kHigh, kMagic);
  high[2] = MaskOr(w0 >> 8, kHigh, kMagic);
  high[3] = MaskOr(w1 >> 8, kHigh, kMagic);
}

/// Half `kHalf` (16 of its 32 k) of a w2 word: 128 + u in rows g, 128 + 4 u in rows g + 8, which
/// saves them a shift.
template <int kHalf>
__device__ __forceinline__ void FragmentW2(uint32_t w, uint32_t (&a)[4]) {
  constexpr uint32_t kMask = 0x00030003u;
  const uint32_t k = w >> (4 * kHalf);
  const uint32_t k8 = w >> (4 * kHalf + 8);
  a[0] = MaskOr(k, kMask, kMagic);
  a[1] = MaskOr(k, kMask << 2, kMagic);
  a[2] = MaskOr(k8, kMask, kMagic);
  a[3] = MaskOr(k8, kMask << 2, kMagic);
}
constexpr float kW2UpperRows = 4;

/// Half `kHalf` of 32 k of w3: 128 + u. `low` is the w2 word; `bits` has the plane of bit 2 of
/// these 32 k in the low nibble of every byte.
template <int kHalf>
__device__ __forceinline__ void FragmentW3(uint32_t low, uint32_t bits, uint32_t (&a)[4]) {
  constexpr uint32_t kMask = 0x00030003u;
  constexpr uint32_t kBit = 0x00040004u;
  a[0] = MaskOr(low >> (4 * kHalf), kMask, kMagic);
  a[1] = MaskOr(low >> (4 * kHalf + 2), kMask, kMagic);
  a[2] = MaskOr(low >> (4 * kHalf + 8), kMask, kMagic);
  a[3] = MaskOr(low >> (4 * kHalf + 10), kMask, kMagic);
  a[0] = MaskOr(kHalf == 0 ? bits << 2 : bits, kBit, a[0]);
  a[1] = MaskOr(kHalf == 0 ? bits << 1 : bits >> 1, kBit, a[1]);
  a[2] = MaskOr(bits >> (6 + 2 * kHalf), kBit, a[2]);
  a[3] = MaskOr(bits >> (7 + 2 * kHalf), kBit, a[3]);
}

/// The two words of 16 k of e4m3: the value / kF8Unit. Sign, exponent and mantissa are those of a
/// bf16 with 120 less in the exponent, subnormal ones too.
__device__ __forceinline__ void FragmentF8(uint32_t w0, uint32_t w1, uint32_t (&a)[4]) {
  constexpr uint32_t kSign = 0x80008000u, kRest = 0x07f007f0u;
  a[0] = MaskOr(w0 << 8, kSign, (w0 << 4) & kRest);
  a[1] = MaskOr(w1 << 8, kSign, (w1 << 4) & kRest);
  a[2] = MaskOr(w0, kSign, (w0 >> 4) & kRest);
  a[3] = MaskOr(w1, kSign, (w1 >> 4) & kRest);
}
constexpr float kF8Unit = 0x1p120f;
/// Packed e4m3 activations are bf16 of this many times their values, so that products are far from
/// the smallest numbers.
constexpr float kF8Activations = 0x1p60f;

constexpr uint32_t kF8UnitBf16 = 0x7b807b80u;  // two bf16 of kF8Unit

/// Bits of a where `mask` is set, else of b, in one instruction.
__device__ __forceinline__ uint32_t Select(uint32_t a, uint32_t b, uint32_t mask) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
  return r;
}

/// A word of 16 k of e2m1: the value / 2^126. The two exponent bits and the mantissa bit are those
/// of a bf16, subnormal ones too. Where the sign is 9 bits above the mantissa bit, two weights of
/// every 16 bits are 4 bits apart: one shift and one mask take each.
__device__ __forceinline__ void FragmentF4(uint32_t w, uint32_t (&a)[4]) {
  constexpr uint32_t kSigns = 0x88008800u, kBits = 0x81c081c0u;
  const uint32_t k = Select(w << 8, w << 2, kSigns);
  const uint32_t k8 = Select(w, w >> 6, kSigns);
  a[0] = (k << 4) & kBits;
  a[1] = k & kBits;
  a[2] = (k8 << 4) & kBits;
  a[3] = k8 & kBits;
}

/// (w & mask) ^ bits in one instruction.
__device__ __forceinline__ uint32_t MaskXor(uint32_t w, uint32_t mask, uint32_t bits) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(w), "r"(mask), "r"(bits));
  return r;
}

/// A w4 word, int8: 16 (u - 8) of row g, of row g + 8.
__device__ __forceinline__ void FragmentW4A8(uint32_t w, uint32_t& low, uint32_t& high) {
  low = MaskXor(w << 4, 0xf0f0f0f0u, 0x80808080u);
  high = MaskXor(w, 0xf0f0f0f0u, 0x80808080u);
}
constexpr float kW4A8Unit = 16;

/// Turns sums of fragment values into sums of weights, of rows g and g + 8.
template <Packing kPacking>
struct Decoding {
  float offset[2];  // of the values, in units of the scale

  __device__ __forceinline__ Decoding(const TileMatrix& m, int /*product*/) {
    const auto zero = static_cast<float>(m.zero_point);
    offset[0] = zero + (kPacking == Packing::kW8 ? 2 * kMagicOffset : kMagicOffset);
    offset[1] = kPacking == Packing::kW2 ? zero + kMagicOffset / kW2UpperRows : offset[0];
  }
};

/// log2 of the k16 of a group of an imported packing: 1, 2, 4 or 8 of them.
__device__ __forceinline__ int GroupShift(const TileMatrix& m) {
  return (m.group_k16s >= 2) + (m.group_k16s >= 4) + (m.group_k16s >= 8);
}

/// For packings that need no more than their scales.
struct NoDecoding {
  __device__ __forceinline__ NoDecoding(const TileMatrix& /*m*/, int /*product*/) {}
};
template <>
struct Decoding<Packing::kF8Block> : NoDecoding {
  using NoDecoding::NoDecoding;
};
template <>
struct Decoding<Packing::kMxFp4> : NoDecoding {
  using NoDecoding::NoDecoding;
};
template <>
struct Decoding<Packing::kNvFp4> {
  float scale[2];  // of the matrices of the two row blocks

  __device__ __forceinline__ Decoding(const TileMatrix& m, int product) {
    const uint8_t* at = m.scales + m.zero_distance;
    scale[0] = *reinterpret_cast<const float*>(at);
    scale[1] = *reinterpret_cast<const float*>(at + (product == 0 ? m.second_scales : 0));
  }
};
template <>
struct Decoding<Packing::kW4Group> {
  int shift;  // log2 of the k16 of a group
  bool f16;   // scales

  __device__ __forceinline__ Decoding(const TileMatrix& m, int /*product*/)
      : shift(GroupShift(m)), f16(m.packing == Packing::kW4GroupF16) {}
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_DEQUANT_CUH_
