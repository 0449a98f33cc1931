#include "offline/rtn_lanes.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

#include "offline/rtn_lanes_body.h"

namespace moert {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16, kAtOnce = 4;
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  static __mmask16 First(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static F Set(float x) { return _mm512_set1_ps(x); }
  static I Int(int x) { return _mm512_set1_epi32(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static F LoadFirst(const float* p, int n) { return _mm512_maskz_loadu_ps(First(n), p); }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void StoreFirst(float* p, F x, int n) { _mm512_mask_storeu_ps(p, First(n), x); }
  static void StoreBytes(uint8_t* p, I x, int n) {
    _mm_mask_storeu_epi8(p, First(n), _mm512_cvtepi32_epi8(x));
  }
  static F KeepFirst(F x, int n) { return _mm512_maskz_mov_ps(First(n), x); }
  static F FirstOr(F x, int n, F other) { return _mm512_mask_mov_ps(other, First(n), x); }

  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Abs(F x) { return Floats(And(Bits(x), Int(0x7fffffff))); }
  static F Negate(F x) { return Floats(_mm512_xor_si512(Bits(x), Int(1 << 31))); }
  static F Round(F x) { return _mm512_roundscale_ps(x, kNearest); }
  static F ToHalf(F x) { return _mm512_cvtph_ps(_mm512_cvtps_ph(x, kNearest)); }
  static F Fraction(F x) { return _mm512_reduce_ps(x, kNearest); }
  static float Total(F x) { return _mm512_reduce_add_ps(x); }
  static float Least(F x) { return _mm512_reduce_min_ps(x); }
  static float Most(F x) { return _mm512_reduce_max_ps(x); }

  static I Bits(F x) { return _mm512_castps_si512(x); }
  static F Floats(I x) { return _mm512_castsi512_ps(x); }
  static I ToInts(F x) { return _mm512_cvtps_epi32(x); }
  static I Plus(I a, I b) { return _mm512_add_epi32(a, b); }
  static I Minus(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I And(I a, I b) { return _mm512_and_si512(a, b); }
  static I Or(I a, I b) { return _mm512_or_si512(a, b); }
  static I Clamp(I x, I low, I high) { return _mm512_min_epi32(_mm512_max_epi32(x, low), high); }
  template <int kBits>
  static I ShiftLeft(I x) {
    return _mm512_slli_epi32(x, kBits);
  }
  template <int kBits>
  static I ShiftRight(I x) {
    return _mm512_srli_epi32(x, kBits);
  }
  static I WhereNot0(I x, I then) {
    return _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(x, x), then);
  }
  static F Lookup(const float* table, I index) {  // of 32
    return _mm512_permutex2var_ps(_mm512_load_ps(table), index, _mm512_load_ps(table + 16));
  }
};

constexpr RtnLanes kTable = LanesOf<Avx512>("avx512");

}  // namespace

const RtnLanes* const kRtnLanesAvx512 = &kTable;

}  // namespace moert

#else  // another processor family

namespace moert {
const RtnLanes* const kRtnLanesAvx512 = nullptr;
}  // namespace moert

#endif
