// Scales of a unit of 128 k in the types of published files. A warp converts those in a stage of
// its ring (scale_copies.cuh) once for all its lanes, into shared memory of its own.
//
// The converted scales have an entry for every 32 k of int4 (16 k of nvfp4): [entry][row block][16
// rows].
#ifndef MOERT_KERNELS_CUDA_PROMPT_IMPORTED_SCALES_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_IMPORTED_SCALES_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/few/scale_copies.cuh"
#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/packing.cuh"

namespace moert::cuda {

/// The lower or the upper two of four bytes, each extended to 16 bits.
__device__ __forceinline__ uint32_t LowBytes(uint32_t v) { return __byte_perm(v, 0, 0x4140); }
__device__ __forceinline__ uint32_t HighBytes(uint32_t v) { return __byte_perm(v, 0, 0x4342); }

/// fp4 scales as bf16 factors of the e2m1 values that FragmentF4 makes: a power of two (mxfp4), or
/// a number of four significant bits (nvfp4). Their product, the weight, has at most six
/// significant bits, so it is exact. kFp4Unit is the remaining factor of the sums. e8m0 scales from
/// 2^-100 to 2^33 are exact; larger ones become 2^33.
template <Packing kPacking>
constexpr float kFp4Unit = kPacking == Packing::kMxFp4 ? 0x1p32f : 0x1p8f;

__device__ __forceinline__ uint32_t MxMultipliers(uint32_t two) {
  constexpr uint32_t kMost = 160;     // 2^33
  constexpr uint32_t kExponent = 94;  // 126 of FragmentF4 less 32
  return __vminu2(two, kMost << 16 | kMost) * 128 + ((kExponent << 16 | kExponent) << 7);
}
__device__ __forceinline__ uint32_t NvMultipliers(uint32_t two) {
  constexpr uint32_t k2To118 = 0x7a807a80u;  // 126 of FragmentF4 less 8
  const uint32_t bits = MaskOr(two << 8, 0x80008000u, (two << 4) & 0x07f007f0u);
  return MulBf16(MulBf16(bits, kF8UnitBf16), k2To118);
}

/// Converts a unit's scales. raw: behind the unit's weights in its stage. to: 256 bytes (mxfp4),
/// 512 (nvfp4).
template <Packing kPacking>
__device__ __forceinline__ void PrepareMultipliers(const uint8_t* raw, uint8_t* to, int lane) {
  if constexpr (kPacking == Packing::kMxFp4) {
    const uint32_t v = reinterpret_cast<const uint32_t*>(raw)[lane];
    reinterpret_cast<uint2*>(to)[lane] =
        make_uint2(MxMultipliers(LowBytes(v)), MxMultipliers(HighBytes(v)));
  } else {
    const uint2 v = reinterpret_cast<const uint2*>(raw)[lane];
    reinterpret_cast<uint4*>(to)[lane] =
        make_uint4(NvMultipliers(LowBytes(v.x)), NvMultipliers(HighBytes(v.x)),
                   NvMultipliers(LowBytes(v.y)), NvMultipliers(HighBytes(v.y)));
  }
}

/// For int4: writes the scales as floats to `to` and, kPreparedOffsets bytes further, -(128 + zero)
/// as bf16.
constexpr int kPreparedOffsets = 512;
__device__ __forceinline__ void PrepareInt4(const uint8_t* raw, uint8_t* to, int lane,
                                            const Decoding<Packing::kW4Group>& decoding,
                                            bool zeros) {
  const int group = (lane >> 3) * 2 >> decoding.shift;  // of entry lane / 8
  const uint2 v = *reinterpret_cast<const uint2*>(raw + group * 64 + (lane & 7) * 8);
  float4 scales;
  if (decoding.f16) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&v.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&v.y));
    scales = make_float4(low.x, low.y, high.x, high.y);
  } else {
    scales = make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                         __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
  }
  reinterpret_cast<float4*>(to)[lane] = scales;
  using Copies = ImportedScaleCopies<Packing::kW4Group>;
  const uint32_t zero =
      zeros ? *reinterpret_cast<const uint32_t*>(raw + Copies::kZeros + group * 32 + (lane & 7) * 4)
            : 0x08080808u;
  constexpr uint32_t kMinusMagic = 0xc300c300u;
  reinterpret_cast<uint2*>(to + kPreparedOffsets)[lane] =
      make_uint2(LowBytes(zero) | kMinusMagic, HighBytes(zero) | kMinusMagic);
}

/// Reads bf16 entries of two quarters of a unit (32 k each) and of both row blocks: those of row g
/// in the low half of a word, those of row g + 8 in the high half. nvfp4 has two entries a quarter;
/// a lane's weights of a quarter belong to one of them.
template <Packing kPacking>
class PreparedPairs {
 public:
  __device__ __forceinline__ PreparedPairs(const uint8_t* at, int lane)
      : at_(SharedAddress(at) + (lane >> 4) * kQuarter + ((lane >> 3) & 1) * 32 + (lane & 1) * 16 +
            (kPacking == Packing::kNvFp4 ? (lane & 4) * 16 : 0)) {}

  /// pair[2 * i + r]: of quarter `quarter` + i, row block r.
  __device__ __forceinline__ void Read(int quarter, uint32_t (&pair)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pair[0]), "=r"(pair[1]), "=r"(pair[2]), "=r"(pair[3])
                 : "r"(at_ + quarter * kQuarter)
                 : "memory");
  }
  /// One half of a pair, in both halves. It compiles to an operand's half selector, not to an
  /// instruction.
  __device__ __forceinline__ static uint32_t Lower(uint32_t pair) {
    uint32_t v;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}"
        : "=r"(v)
        : "r"(pair));
    return v;
  }
  __device__ __forceinline__ static uint32_t Upper(uint32_t pair) {
    uint32_t v;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}"
        : "=r"(v)
        : "r"(pair));
    return v;
  }

 private:
  static constexpr int kQuarter = kPacking == Packing::kNvFp4 ? 128 : 64;
  uint32_t at_;
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_IMPORTED_SCALES_CUH_
