// Eight vectors that hold the lines of a small matrix, for transposing it.
#ifndef MOERT_LIB_QUANT_SHUFFLE_LINES_H_
#define MOERT_LIB_QUANT_SHUFFLE_LINES_H_

#include <emmintrin.h>

namespace moert {

struct EightLines {
  __m128i x[8];
};

/// Interleaves the first half of all elements with the second half, so that the highest bit of an
/// element's index becomes the lowest; `times` over. T has one or two bytes.
template <typename T, int kTimes>
EightLines ShuffleLines(const EightLines& of) {
  static_assert(sizeof(T) <= 2);
  const auto low = [&](int i) {
    return sizeof(T) == 1 ? _mm_unpacklo_epi8(of.x[i], of.x[i + 4])
                          : _mm_unpacklo_epi16(of.x[i], of.x[i + 4]);
  };
  const auto high = [&](int i) {
    return sizeof(T) == 1 ? _mm_unpackhi_epi8(of.x[i], of.x[i + 4])
                          : _mm_unpackhi_epi16(of.x[i], of.x[i + 4]);
  };
  const EightLines out = {{low(0), high(0), low(1), high(1), low(2), high(2), low(3), high(3)}};
  if constexpr (kTimes > 1) return ShuffleLines<T, kTimes - 1>(out);
  return out;
}

}  // namespace moert

#endif  // MOERT_LIB_QUANT_SHUFFLE_LINES_H_
