#include "offline/rtn_lanes.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "offline/rtn_lanes_body.h"

namespace moert {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8, kAtOnce = 2;
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  static I First(int n) {
    return _mm256_cmpgt_epi32(Int(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static F Set(float x) { return _mm256_set1_ps(x); }
  static I Int(int x) { return _mm256_set1_epi32(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static F LoadFirst(const float* p, int n) {
    return n == kLanes ? Load(p) : _mm256_maskload_ps(p, First(n));
  }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void StoreFirst(float* p, F x, int n) {
    n == kLanes ? Store(p, x) : _mm256_maskstore_ps(p, First(n), x);
  }
  static void StoreBytes(uint8_t* p, I x, int n) {
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i bytes = _mm_packus_epi16(words, words);
    if (n == kLanes) return _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes);
    alignas(16) uint8_t all[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(all), bytes);
    for (int i = 0; i < n; ++i) p[i] = all[i];
  }
  static F KeepFirst(F x, int n) {
    return n == kLanes ? x : _mm256_and_ps(x, _mm256_castsi256_ps(First(n)));
  }
  static F FirstOr(F x, int n, F other) {
    return n == kLanes ? x : _mm256_blendv_ps(other, x, _mm256_castsi256_ps(First(n)));
  }

  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Abs(F x) { return Floats(And(Bits(x), Int(0x7fffffff))); }
  static F Negate(F x) { return Floats(_mm256_xor_si256(Bits(x), Int(1 << 31))); }
  static F Round(F x) { return _mm256_round_ps(x, kNearest); }
  static F ToHalf(F x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, kNearest)); }
  static F Fraction(F x) { return Sub(x, Round(x)); }
  static float Total(F x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float Least(F x) {
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
  }
  static float Most(F x) { return -Least(Negate(x)); }

  static I Bits(F x) { return _mm256_castps_si256(x); }
  static F Floats(I x) { return _mm256_castsi256_ps(x); }
  static I ToInts(F x) { return _mm256_cvtps_epi32(x); }
  static I Plus(I a, I b) { return _mm256_add_epi32(a, b); }
  static I Minus(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I And(I a, I b) { return _mm256_and_si256(a, b); }
  static I Or(I a, I b) { return _mm256_or_si256(a, b); }
  static I Clamp(I x, I low, I high) { return _mm256_min_epi32(_mm256_max_epi32(x, low), high); }
  template <int kBits>
  static I ShiftLeft(I x) {
    return _mm256_slli_epi32(x, kBits);
  }
  template <int kBits>
  static I ShiftRight(I x) {
    return _mm256_srli_epi32(x, kBits);
  }
  static I WhereNot0(I x, I then) {
    return _mm256_andnot_si256(_mm256_cmpeq_epi32(x, _mm256_setzero_si256()), then);
  }
  static F Lookup(const float* table, I index) { return _mm256_i32gather_ps(table, index, 4); }
};

constexpr RtnLanes kTable = LanesOf<Avx2>("avx2");

}  // namespace

const RtnLanes* const kRtnLanesAvx2 = &kTable;

}  // namespace moert

#else  // another processor family

namespace moert {
const RtnLanes* const kRtnLanesAvx2 = nullptr;
}  // namespace moert

#endif
