// Packed weights -> bf16 A fragments, by masks and shifts alone: the bits of a weight become the
// mantissa of 128 + u (bf16 0x4300 | u). Scale, zero and the 128 are applied to the sums, where
// they cost one fused multiply-add a group and not one a weight. Layouts: docs/layout.md.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_DEQUANT_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_DEQUANT_CUH_

#include <cstdint>

namespace moert::cuda {

constexpr uint32_t kMagic = 0x43004300u;  // two bf16 of 128
constexpr int kMagicOffset = 128;

/// (w & mask) | or_bits in one instruction.
__device__ __forceinline__ uint32_t MaskOr(uint32_t w, uint32_t mask, uint32_t or_bits) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(w), "r"(mask), "r"(or_bits));
  return r;
}

/// One w4 word: the fragment of 16 k.
__device__ __forceinline__ void FragmentW4(uint32_t w, uint32_t (&a)[4]) {
  constexpr uint32_t kMask = 0x000f000fu;
  a[0] = MaskOr(w, kMask, kMagic);
  a[1] = MaskOr(w >> 4, kMask, kMagic);
  a[2] = MaskOr(w >> 8, kMask, kMagic);
  a[3] = MaskOr(w >> 12, kMask, kMagic);
}

/// The two w8 words of 16 k: low and high nibbles apart, u = low + 16 high.
__device__ __forceinline__ void FragmentW8(uint32_t w0, uint32_t w1, uint32_t (&low)[4],
                                           uint32_t (&high)[4]) {
  constexpr uint32_t kMask = 0x000f000fu;
  low[0] = MaskOr(w0, kMask, kMagic);
  low[1] = MaskOr(w1, kMask, kMagic);
  low[2] = MaskOr(w0 >> 8, kMask, kMagic);
  low[3] = MaskOr(w1 >> 8, kMask, kMagic);
  high[0] = MaskOr(w0 >> 4, kMask, kMagic);
  high[1] = MaskOr(w1 >> 4, kMask, kMagic);
  high[2] = MaskOr(w0 >> 12, kMask, kMagic);
  high[3] = MaskOr(w1 >> 12, kMask, kMagic);
}

/// Half `kHalf` (16 of its 32 k) of a w2 word.
template <int kHalf>
__device__ __forceinline__ void FragmentW2(uint32_t w, uint32_t (&a)[4]) {
  constexpr uint32_t kMask = 0x00030003u;
  a[0] = MaskOr(w >> (4 * kHalf), kMask, kMagic);
  a[1] = MaskOr(w >> (4 * kHalf + 2), kMask, kMagic);
  a[2] = MaskOr(w >> (4 * kHalf + 8), kMask, kMagic);
  a[3] = MaskOr(w >> (4 * kHalf + 10), kMask, kMagic);
}

/// Quarter `kQuarter` (16 of 64 k) of w3: `low` the w2 word of its half, `bits` the word of the
/// plane of bit 2.
template <int kQuarter>
__device__ __forceinline__ void FragmentW3(uint32_t low, uint32_t bits, uint32_t (&a)[4]) {
  FragmentW2<kQuarter % 2>(low, a);
  constexpr uint32_t kMask = 0x00040004u;
  const uint32_t raised = bits << 2;
  a[0] = MaskOr(raised >> (2 * kQuarter), kMask, a[0]);
  a[1] = MaskOr(raised >> (2 * kQuarter + 1), kMask, a[1]);
  // `raised` has lost the top two bits, which byte 3 needs.
  a[2] = MaskOr(bits >> (2 * kQuarter + 6), kMask, a[2]);
  a[3] = MaskOr(bits >> (2 * kQuarter + 7), kMask, a[3]);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_DEQUANT_CUH_
