// Rows of weights by format, as AVX-512 code reads them, a step of 16 groups at a time. A format
// has
//   kGroup       columns that share a scale: 32 or 16
//   kStepBytes   of a step
//   ReadScales   of the first `groups` of a step: weight = scale * code + offset
//   Codes        64 codes from 0 to 255: columns [64 * i, 64 * i + 64) of a step, in order
// Layouts: ggml's ggml-common.h.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_ROW_FORMATS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_ROW_FORMATS_H_

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace moert_ggml::rows {

struct StepScales {
  __m512 scale, offset;
};

inline int16_t HalfBits(const uint8_t* at) {
  int16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}
inline float Half(const uint8_t* at) { return _cvtsh_ss(static_cast<uint16_t>(HalfBits(at))); }

// Loads 8 fp16 numbers that lie `kStride` bytes apart.
template <int kStride>
__m128i EightHalves(const uint8_t* at) {
  return _mm_set_epi16(HalfBits(at + 7 * kStride), HalfBits(at + 6 * kStride),
                       HalfBits(at + 5 * kStride), HalfBits(at + 4 * kStride),
                       HalfBits(at + 3 * kStride), HalfBits(at + 2 * kStride),
                       HalfBits(at + kStride), HalfBits(at));
}
// Loads `count` of 16 such numbers, zeros for the rest.
template <int kStride>
__m512 Halves(const uint8_t* at, int count) {
  if (count == 16) {
    return _mm512_cvtph_ps(
        _mm256_set_m128i(EightHalves<kStride>(at + 8 * kStride), EightHalves<kStride>(at)));
  }
  if (count == 8) return _mm512_zextps256_ps512(_mm256_cvtph_ps(EightHalves<kStride>(at)));
  alignas(64) float values[16] = {};
  for (int i = 0; i < count; ++i) values[i] = Half(at + i * kStride);
  return _mm512_load_ps(values);
}

inline __m128i Bytes16(const uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
inline __m256i Bytes32(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// Codes of 4 bits from two blocks: 16 bytes hold 32 codes, low halves first.
inline __m512i Nibbles16(const uint8_t* first, const uint8_t* second) {
  const __m512i both =
      _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(Bytes16(first)), 0xFF00, Bytes16(second));
  const __m512i shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
  return _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15));
}
// Codes of 4 bits: 32 bytes hold 64 codes, low halves first.
inline __m512i Nibbles32(const uint8_t* at) {
  const __m512i both = _mm512_broadcast_i64x4(Bytes32(at));
  const __m512i shifts = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
  return _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15));
}
// Bits `shift` and on of 32 bytes for 32 codes, bits `shift + step` and on for the next 32.
template <int kStep>
__m512i Fields32(const uint8_t* at, int shift, int mask) {
  const __m512i both = _mm512_broadcast_i64x4(Bytes32(at));
  const __m512i by = _mm512_add_epi64(_mm512_set_epi64(kStep, kStep, kStep, kStep, 0, 0, 0, 0),
                                      _mm512_set1_epi64(shift));
  return _mm512_and_si512(_mm512_srlv_epi64(both, by), _mm512_set1_epi8(static_cast<char>(mask)));
}
inline __m512i Lookup(const int8_t (&table)[16], int plus, __m512i nibbles) {
  alignas(16) char codes[16];
  for (int i = 0; i < 16; ++i) codes[i] = static_cast<char>(table[i] + plus);
  const __m128i one = _mm_load_si128(reinterpret_cast<const __m128i*>(codes));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(one), nibbles);
}

constexpr int8_t kIq4Codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kFp4Codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Blocks of 32 columns, each with a scale in fp16 in front.
template <int kBytes, int kOffset>
struct HalfBlocks {
  static constexpr int kGroup = 32;
  static constexpr int kStepBytes = 16 * kBytes;
  static StepScales ReadScales(const uint8_t* step, int groups) {
    const __m512 scale = Halves<kBytes>(step, groups);
    return {scale, _mm512_mul_ps(scale, _mm512_set1_ps(kOffset))};
  }
};
struct Q4_0 : HalfBlocks<18, -8> {
  static __m512i Codes(const uint8_t* step, int i) {
    return Nibbles16(step + 36 * i + 2, step + 36 * i + 20);
  }
};
struct Iq4Nl : HalfBlocks<18, -128> {
  static __m512i Codes(const uint8_t* step, int i) {
    return Lookup(kIq4Codes, 128, Q4_0::Codes(step, i));
  }
};
struct Q8_0 : HalfBlocks<34, -128> {
  static __m512i Codes(const uint8_t* step, int i) {
    const uint8_t* at = step + 68 * i + 2;
    const __m512i codes =
        _mm512_inserti64x4(_mm512_castsi256_si512(Bytes32(at)), Bytes32(at + 34), 1);
    return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
  }
};
// Codes of 5 bits: bit j of 4 bytes is the highest of code j.
inline __m512i WithFifthBits(__m512i codes, const uint8_t* first, const uint8_t* second) {
  uint32_t bits[2];
  std::memcpy(&bits[0], first, 4);
  std::memcpy(&bits[1], second, 4);
  const __mmask64 high = bits[0] | static_cast<uint64_t>(bits[1]) << 32;
  return _mm512_mask_add_epi8(codes, high, codes, _mm512_set1_epi8(16));
}
struct Q5_0 : HalfBlocks<22, -16> {
  static __m512i Codes(const uint8_t* step, int i) {
    const uint8_t *a = step + 44 * i + 2, *b = a + 22;
    return WithFifthBits(Nibbles16(a + 4, b + 4), a, b);
  }
};
// Scale and offset in fp16 in front.
template <int kBytes>
struct TwoHalfBlocks {
  static constexpr int kGroup = 32;
  static constexpr int kStepBytes = 16 * kBytes;
  static StepScales ReadScales(const uint8_t* step, int groups) {
    return {Halves<kBytes>(step, groups), Halves<kBytes>(step + 2, groups)};
  }
};
struct Q4_1 : TwoHalfBlocks<20> {
  static __m512i Codes(const uint8_t* step, int i) {
    return Nibbles16(step + 40 * i + 4, step + 40 * i + 24);
  }
};
struct Q5_1 : TwoHalfBlocks<24> {
  static __m512i Codes(const uint8_t* step, int i) {
    const uint8_t *a = step + 48 * i + 4, *b = a + 24;
    return WithFifthBits(Nibbles16(a + 4, b + 4), a, b);
  }
};
// Loads 8 bytes that lie `kStride` bytes apart.
template <int kStride>
__m128i EightBytes(const uint8_t* at) {
  uint64_t bytes = 0;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) bytes |= static_cast<uint64_t>(at[i * kStride]) << 8 * i;
  return _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
}
// Loads `count` of 16 such bytes, zeros for the rest.
template <int kStride>
__m128i FirstBytes(const uint8_t* at, int count) {
  if (count == 8) return EightBytes<kStride>(at);
  alignas(16) uint8_t bytes[16] = {};
  for (int i = 0; i < count; ++i) bytes[i] = at[i * kStride];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}
struct MxFp4 {
  static constexpr int kGroup = 32;
  static constexpr int kStepBytes = 16 * 17;
  static StepScales ReadScales(const uint8_t* step, int groups) {
    const __m128i bytes = groups == 16
                              ? _mm_unpacklo_epi64(EightBytes<17>(step), EightBytes<17>(step + 136))
                              : FirstBytes<17>(step, groups);
    const __m512i e = _mm512_cvtepu8_epi32(bytes);
    // Half of 2^(e - 127), since codes are doubled; below 2^-126 that is denormal.
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    const __m512 scale = _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, normal, small));
    return {scale, _mm512_mul_ps(scale, _mm512_set1_ps(-12))};
  }
  static __m512i Codes(const uint8_t* step, int i) {
    return Lookup(kFp4Codes, 12, Nibbles16(step + 34 * i + 1, step + 34 * i + 18));
  }
};

// Blocks of 256 columns with scales of scales, two of them a step.
template <int kBlockBytes>
struct PairOfBlocks {
  static constexpr int kGroup = 32;
  static constexpr int kStepBytes = 2 * kBlockBytes;
  using ReadBlock = void (*)(const uint8_t* block, __m256* scale, __m256* offset);
  template <ReadBlock kRead>
  static StepScales Both(const uint8_t* step, int groups) {
    __m256 scale[2], offset[2];
    scale[1] = offset[1] = _mm256_setzero_ps();
    kRead(step, &scale[0], &offset[0]);
    if (groups > 8) kRead(step + kBlockBytes, &scale[1], &offset[1]);
    return {_mm512_insertf32x8(_mm512_castps256_ps512(scale[0]), scale[1], 1),
            _mm512_insertf32x8(_mm512_castps256_ps512(offset[0]), offset[1], 1)};
  }
  static const uint8_t* Block(const uint8_t* step, int i) { return step + (i / 4) * kBlockBytes; }
};
inline __m256 Floats(uint64_t bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
}
// 8 scales and 8 offsets of 6 bits in 12 bytes, after the block's own scale and offset in fp16.
inline void ReadSixBits(const uint8_t* block, __m256* scale, __m256* offset) {
  uint32_t a, b, c;
  std::memcpy(&a, block + 4, 4);
  std::memcpy(&b, block + 8, 4);
  std::memcpy(&c, block + 12, 4);
  constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x30303030;
  const uint64_t scales = (a & kSix) | static_cast<uint64_t>((c & kFour) | ((a >> 2) & kTwo)) << 32;
  const uint64_t lows = (b & kSix) | static_cast<uint64_t>(((c >> 4) & kFour) | ((b >> 2) & kTwo))
                                         << 32;
  *scale = _mm256_mul_ps(Floats(scales), _mm256_set1_ps(Half(block)));
  *offset = _mm256_mul_ps(Floats(lows), _mm256_set1_ps(-Half(block + 2)));
}
struct Q4K : PairOfBlocks<144> {
  static StepScales ReadScales(const uint8_t* step, int groups) {
    return Both<ReadSixBits>(step, groups);
  }
  static __m512i Codes(const uint8_t* step, int i) {
    return Nibbles32(Block(step, i) + 16 + 32 * (i % 4));
  }
};
struct Q5K : PairOfBlocks<176> {
  static StepScales ReadScales(const uint8_t* step, int groups) {
    return Both<ReadSixBits>(step, groups);
  }
  static __m512i Codes(const uint8_t* step, int i) {
    const uint8_t* block = Block(step, i);
    const __m512i high = Fields32<1>(block + 16, 2 * (i % 4), 1);
    return _mm512_or_si512(Nibbles32(block + 48 + 32 * (i % 4)), _mm512_slli_epi16(high, 4));
  }
};
inline __m256i Bits(uint32_t bits, __m256i shifts, int mask) {
  return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(bits)), shifts),
                          _mm256_set1_epi32(mask));
}
// 8 scales of 6 bits, 4 of them in 4 bytes and 2 in 2 bytes.
inline void ReadIq4Scales(const uint8_t* block, __m256* scale, __m256* offset) {
  uint32_t low;
  std::memcpy(&low, block + 4, 4);
  const auto high = static_cast<uint32_t>(static_cast<uint16_t>(HalfBits(block + 2)));
  const __m256i four = Bits(low, _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0), 15);
  const __m256i two = Bits(high, _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0), 3);
  const __m256i six =
      _mm256_sub_epi32(_mm256_or_si256(four, _mm256_slli_epi32(two, 4)), _mm256_set1_epi32(32));
  *scale = _mm256_mul_ps(_mm256_cvtepi32_ps(six), _mm256_set1_ps(Half(block)));
  *offset = _mm256_mul_ps(*scale, _mm256_set1_ps(-128));
}
struct Iq4Xs : PairOfBlocks<136> {
  static StepScales ReadScales(const uint8_t* step, int groups) {
    return Both<ReadIq4Scales>(step, groups);
  }
  static __m512i Codes(const uint8_t* step, int i) {
    const uint8_t* at = Block(step, i) + 8 + 32 * (i % 4);
    return Lookup(kIq4Codes, 128, Nibbles16(at, at + 16));
  }
};

// Blocks of 256 columns with a scale every 16, one a step.
struct Q6K {
  static constexpr int kGroup = 16;
  static constexpr int kStepBytes = 210;
  static StepScales ReadScales(const uint8_t* block, int /*groups*/) {
    const __m512i scales = _mm512_cvtepi8_epi32(Bytes16(block + 192));
    const __m512 scale =
        _mm512_mul_ps(_mm512_cvtepi32_ps(scales), _mm512_set1_ps(Half(block + 208)));
    return {scale, _mm512_mul_ps(scale, _mm512_set1_ps(-32))};
  }
  static __m512i Codes(const uint8_t* block, int i) {
    const int half = i / 2, upper = i % 2;
    __m512i low = _mm512_loadu_si512(block + 64 * half);
    if (upper != 0) low = _mm512_srli_epi16(low, 4);
    const __m512i high = Fields32<2>(block + 128 + 32 * half, 4 * upper, 3);
    return _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), _mm512_slli_epi16(high, 4));
  }
};
struct Q3K {
  static constexpr int kGroup = 16;
  static constexpr int kStepBytes = 110;
  static StepScales ReadScales(const uint8_t* block, int /*groups*/) {
    uint32_t a, b, c;
    std::memcpy(&a, block + 96, 4);
    std::memcpy(&b, block + 100, 4);
    std::memcpy(&c, block + 104, 4);
    constexpr uint32_t kFour = 0x0f0f0f0f, kTwo = 0x03030303;
    const auto six = [=](uint32_t four, int shift) {
      return static_cast<int>((four & kFour) | ((c >> shift) & kTwo) << 4);
    };
    const __m128i bytes = _mm_sub_epi8(
        _mm_set_epi32(six(b >> 4, 6), six(a >> 4, 4), six(b, 2), six(a, 0)), _mm_set1_epi8(32));
    const __m512 scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)),
                                       _mm512_set1_ps(Half(block + 108)));
    return {scale, _mm512_mul_ps(scale, _mm512_set1_ps(-4))};
  }
  static __m512i Codes(const uint8_t* block, int i) {
    const __m512i low = Fields32<2>(block + 32 + 32 * (i / 2), 4 * (i % 2), 3);
    const __m512i high = Fields32<1>(block, 2 * i, 1);
    return _mm512_or_si512(low, _mm512_slli_epi16(high, 2));
  }
};

}  // namespace moert_ggml::rows

#endif  // MOERT_EXAMPLES_GGML_BACKEND_ROW_FORMATS_H_
