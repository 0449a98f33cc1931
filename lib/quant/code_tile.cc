#include "quant/code_tile.h"

#include <emmintrin.h>

namespace moert {
namespace {

// The place of the code of (row, k) in the bytes of its tile of 16 rows x 64 k: the byte and the
// lowest bit. 3-bit codes have their low two bits in the 2-bit plane and the third in a plane of
// its own.
//
// A word is a little-endian u32 of one lane; byte b of it holds k = {2t, 2t+8, 2t+1, 2t+9}[b] of a
// k16.
struct Place {
  int64_t byte;
  int bit;
};

constexpr int64_t kLanes = 32;
constexpr int64_t kHalf = kRowTile / 2;  // rows g and g + 8 share a lane
constexpr int64_t kK16 = 16;

/// Byte inside a word that holds position k (0..15) of a k16, and the lane's t.
constexpr int ByteOfK(int64_t k) { return static_cast<int>((k % 2) * 2 + k / 8); }
constexpr int64_t LaneOf(int64_t row, int64_t k) { return (row % 8) * 4 + (k % 8) / 2; }

constexpr Place PlaceOf8(int64_t row, int64_t k) {
  const int64_t k16 = k / 16;
  return {((k16 * kLanes + LaneOf(row, k % 16)) * 2 + row / 8) * 4 + ByteOfK(k % 16), 0};
}
constexpr Place PlaceOf4(int64_t row, int64_t k) {
  const int64_t k16 = k / 16;
  return {(k16 * kLanes + LaneOf(row, k % 16)) * 4 + ByteOfK(k % 16),
          static_cast<int>(row / 8) * 4};
}
constexpr Place PlaceOf2(int64_t row, int64_t k) {
  const int64_t k32 = k / 32;
  const int field = static_cast<int>(2 * ((k % 32) / 16) + row / 8);
  return {(k32 * kLanes + LaneOf(row, k % 16)) * 4 + ByteOfK(k % 16), 2 * field};
}
constexpr int64_t kPlaneOffset3 = 2 * kLanes * 4;  // after the two 2-bit blocks of a k64
constexpr Place PlaceOfThirdBit(int64_t row, int64_t k) {
  return {kPlaneOffset3 + LaneOf(row, k % 16) * 4 + ByteOfK(k % 16),
          static_cast<int>(2 * (k / 16) + row / 8)};
}

// The 16 codes of a row from `codes` on, in the order of a row's four words: 0 8 1 9 2 10 ...
__m128i Words(const uint8_t* codes) {
  const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return _mm_unpacklo_epi8(row, _mm_srli_si128(row, 8));
}

// Puts `fields`, none of which extends into the next byte, above those of `low`.
__m128i Above(__m128i low, __m128i fields, int bits) {
  return _mm_or_si128(low, _mm_slli_epi16(fields, bits));
}

void Store(__m128i bytes, uint8_t** out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(*out), bytes);
  *out += sizeof(bytes);
}

void Pack8(const CodeTile& codes, uint8_t* out) {
  for (int64_t k0 = 0; k0 < kKTile; k0 += kK16) {
    for (int64_t g = 0; g < kHalf; ++g) {
      const __m128i upper = Words(codes[g] + k0), lower = Words(codes[g + kHalf] + k0);
      Store(_mm_unpacklo_epi32(upper, lower), &out);
      Store(_mm_unpackhi_epi32(upper, lower), &out);
    }
  }
}

void Pack4(const CodeTile& codes, uint8_t* out) {
  for (int64_t k0 = 0; k0 < kKTile; k0 += kK16) {
    for (int64_t g = 0; g < kHalf; ++g) {
      Store(Above(Words(codes[g] + k0), Words(codes[g + kHalf] + k0), 4), &out);
    }
  }
}

// The low two bits of each code.
void Pack2(const CodeTile& codes, uint8_t* out) {
  const __m128i low = _mm_set1_epi8(3);
  for (int64_t k0 = 0; k0 < kKTile; k0 += 2 * kK16) {
    for (int64_t g = 0; g < kHalf; ++g) {
      __m128i bytes = _mm_setzero_si128();
      for (int i = 0; i < 4; ++i) {
        const uint8_t* at = codes[g + i % 2 * kHalf] + k0 + i / 2 * kK16;
        bytes = Above(bytes, _mm_and_si128(Words(at), low), 2 * i);
      }
      Store(bytes, &out);
    }
  }
}

void Pack3(const CodeTile& codes, uint8_t* out) {
  Pack2(codes, out);
  out += kPlaneOffset3;
  const __m128i third = _mm_set1_epi8(4);
  for (int64_t g = 0; g < kHalf; ++g) {
    __m128i bytes = _mm_setzero_si128();
    for (int i = 0; i < 8; ++i) {
      const uint8_t* at = codes[g + i % 2 * kHalf] + i / 2 * kK16;
      const __m128i bit = _mm_srli_epi16(_mm_and_si128(Words(at), third), 2);
      bytes = Above(bytes, bit, i);
    }
    Store(bytes, &out);
  }
}

// bad: of 16 codes, bytes that are not 0 where one is.
template <typename Bad>
bool NoneBad(const CodeTile& codes, Bad bad) {
  __m128i found = _mm_setzero_si128();
  for (const auto& row : codes) {
    for (int64_t k = 0; k < kKTile; k += kK16) {
      const auto* at = reinterpret_cast<const __m128i*>(row + k);
      found = _mm_or_si128(found, bad(_mm_loadu_si128(at)));
    }
  }
  return _mm_movemask_epi8(_mm_cmpeq_epi8(found, _mm_setzero_si128())) == 0xffff;
}

}  // namespace

void PackCodeTile(int bits, const CodeTile& codes, uint8_t* out) {
  switch (bits) {
    case 8:
      return Pack8(codes, out);
    case 4:
      return Pack4(codes, out);
    case 3:
      return Pack3(codes, out);
    case 2:
      return Pack2(codes, out);
  }
}

uint8_t PackedCode(int bits, int64_t row, int64_t k, const uint8_t* tile) {
  const auto get = [&](Place p, int mask) { return (tile[p.byte] >> p.bit) & mask; };
  const auto code = [&] {
    switch (bits) {
      case 8:
        return get(PlaceOf8(row, k), 255);
      case 4:
        return get(PlaceOf4(row, k), 15);
      case 3:
        return get(PlaceOf2(row, k), 3) | (get(PlaceOfThirdBit(row, k), 1) << 2);
      default:
        return get(PlaceOf2(row, k), 3);
    }
  };
  return static_cast<uint8_t>(code());
}

bool LegalCodes(const Scheme& scheme, const CodeTile& codes) {
  if (scheme.fp8) {
    const __m128i magnitude = _mm_set1_epi8(0x7f);
    return NoneBad(
        codes, [&](__m128i x) { return _mm_cmpeq_epi8(_mm_and_si128(x, magnitude), magnitude); });
  }
  if (scheme.weight_bits == 8) return true;
  const __m128i most = _mm_set1_epi8(static_cast<char>((1 << scheme.weight_bits) - 1));
  return NoneBad(codes, [&](__m128i x) { return _mm_subs_epu8(x, most); });
}

}  // namespace moert
