#include "offline/rtn_lanes.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

namespace moert {
namespace {

constexpr int kLowestExponent = -22;  // below, a power is nothing beside a sum's rounding

// 2^(2.4 e) for e = kLowestExponent ... kLowestExponent + 31. A constant: nothing of this file may
// run before the processor was asked.
alignas(64) constexpr float kPowers[32] = {
    1.27531133e-16f,
    6.73113366e-16f,
    3.55271368e-15f,
    1.87513359e-14f,
    9.89701417e-14f,
    5.22367523e-13f,
    2.75707235e-12f,
    1.45519152e-11f,
    7.68054717e-11f,
    4.053817e-10f,
    2.13961737e-09f,
    1.12929683e-08f,
    5.96046448e-08f,
    3.14595212e-07f,
    1.66044344e-06f,
    8.76387276e-06f,
    4.62559983e-05f,
    0.000244140625f,
    0.00128858199f,
    0.00680117635f,
    0.0358968228f,
    0.189464569f,
    1.0f,
    5.27803183f,
    27.8576183f,
    147.033386f,
    776.046875f,
    4096.0f,
    21618.8184f,
    114104.805f,
    602248.75f,
    3178688.0f,
};

// |x|^2.4: the exponent's part from the table, the mantissa's by a polynomial around 1.5.
inline __m512 Power(__m512 x, __m512 low, __m512 high) {
  const __m512i exponent = _mm512_min_epi32(
      _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_max_ps(_mm512_getexp_ps(x), _mm512_set1_ps(-100))),
                       _mm512_set1_epi32(kLowestExponent)),
      _mm512_set1_epi32(kLowestExponent + 31));
  const __m512 scale = _mm512_permutex2var_ps(
      low, _mm512_sub_epi32(exponent, _mm512_set1_epi32(kLowestExponent)), high);
  const __m512 m = _mm512_sub_ps(_mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero),
                                 _mm512_set1_ps(1.5f));
  __m512 p = _mm512_set1_ps(0.0038924550817068817f);
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(-0.017984416125187874f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(0.17561396007233684f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(1.975852713473384f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(4.233884673752479f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(2.6461772447060485f));
  return _mm512_mul_ps(p, scale);
}

constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

inline __mmask16 First(int count) {
  return count >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << count) - 1);
}

// Floats of few bits.
struct FloatGrid {
  int mantissa;  // bits
  int lowest;    // exponent of the normal ones
  float most;
};
constexpr FloatGrid kE4M3 = {3, -6, 448}, kE2M1 = {1, 0, 6};

// x * 2^shift: the whole numbers are the grid's values around x >= 0.
inline __m512 Shift(const FloatGrid& grid, __m512 x) {
  const __m512 exponent =
      _mm512_max_ps(_mm512_getexp_ps(x), _mm512_set1_ps(static_cast<float>(grid.lowest)));
  return _mm512_sub_ps(_mm512_set1_ps(static_cast<float>(grid.mantissa)), exponent);
}

// sum + t^2 p(t), p(t) = t^0.4 up to t = 1/2 and constant above: no more than t^2.4 but for 6.2e-5.
inline __m512 AddLowPower(__m512 u, __m512 top, __m512 sum) {
  const __m512 code =
      _mm512_roundscale_ps(_mm512_min_ps(_mm512_max_ps(u, _mm512_setzero_ps()), top), kNearest);
  const __m512 error = _mm512_sub_ps(u, code);
  const __m512 t = _mm512_min_ps(_mm512_abs_ps(error), _mm512_set1_ps(0.5f));
  __m512 p = _mm512_set1_ps(1.5788605213f);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-2.3945972919f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.8412247896f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.2387753427f));
  return _mm512_fmadd_ps(_mm512_mul_ps(error, error), p, sum);
}

constexpr int kAtOnce = 4;  // candidates

inline __m128 Quarter(__m512 x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

inline __m128 Totals(const __m512* x) {
  return _mm_hadd_ps(_mm_hadd_ps(Quarter(x[0]), Quarter(x[1])),
                     _mm_hadd_ps(Quarter(x[2]), Quarter(x[3])));
}

}  // namespace

// Of two zeros the instructions keep the second, which is positive: as std::min and std::max here.
void RtnRangeAvx512(const float* values, int count, float* low, float* high) {
  __m512 least = _mm512_setzero_ps(), most = _mm512_setzero_ps();
  for (int i = 0; i < count; i += 16) {
    const __m512 v = _mm512_maskz_loadu_ps(First(count - i), values + i);
    least = _mm512_min_ps(v, least);
    most = _mm512_max_ps(v, most);
  }
  *low = _mm512_reduce_min_ps(least);
  *high = _mm512_reduce_max_ps(most);
}

float RtnErrorSumAvx512(const float* values, int count, float top, float inverse, float zero) {
  const __m512 low = _mm512_load_ps(kPowers), high = _mm512_load_ps(kPowers + 16);
  const __m512 most = _mm512_set1_ps(top), none = _mm512_setzero_ps();
  const __m512 factor = _mm512_set1_ps(inverse), shift = _mm512_set1_ps(zero);
  __m512 sum = none;
  for (int i = 0; i < count; i += 16) {
    const __mmask16 here = First(count - i);
    const __m512 v = _mm512_maskz_loadu_ps(here, values + i);
    const __m512 u = _mm512_add_ps(_mm512_mul_ps(v, factor), shift);
    const __m512 code = _mm512_roundscale_ps(_mm512_min_ps(_mm512_max_ps(u, none), most), kNearest);
    sum = _mm512_mask_add_ps(sum, here, sum, Power(_mm512_sub_ps(u, code), low, high));
  }
  return _mm512_reduce_add_ps(sum);
}

// Several candidates at once: their sums
// do not wait for each other.
void RtnLeastSumsAvx512(const float* values, int count, float top, const float* inverse,
                        const float* zero, int candidates, float* sums) {
  const __m512 most = _mm512_set1_ps(top);
  for (int c = 0; c < candidates; c += kAtOnce) {
    __m512 factor[kAtOnce], shift[kAtOnce], sum[kAtOnce];
#pragma GCC unroll 4
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = c + j < candidates ? c + j : candidates - 1;
      factor[j] = _mm512_set1_ps(inverse[at]);
      shift[j] = _mm512_set1_ps(zero[at]);
      sum[j] = _mm512_setzero_ps();
    }
    int i = 0;
    for (; i + 16 <= count; i += 16) {
      const __m512 v = _mm512_loadu_ps(values + i);
#pragma GCC unroll 4
      for (int j = 0; j < kAtOnce; ++j) {
        sum[j] = AddLowPower(_mm512_fmadd_ps(v, factor[j], shift[j]), most, sum[j]);
      }
    }
    if (i < count) {
      const __mmask16 here = First(count - i);
      const __m512 v = _mm512_maskz_loadu_ps(here, values + i);
#pragma GCC unroll 4
      for (int j = 0; j < kAtOnce; ++j) {
        sum[j] = _mm512_mask_mov_ps(
            sum[j], here, AddLowPower(_mm512_fmadd_ps(v, factor[j], shift[j]), most, sum[j]));
      }
    }
    const int n = candidates - c < kAtOnce ? candidates - c : kAtOnce;
    _mm_mask_storeu_ps(sums + c, static_cast<__mmask8>((1u << n) - 1), Totals(sum));
  }
}

float RtnFloatErrorSumAvx512(bool fp8, const float* values, int count, float scale) {
  const __m512 low = _mm512_load_ps(kPowers), high = _mm512_load_ps(kPowers + 16);
  const FloatGrid grid = fp8 ? kE4M3 : kE2M1;
  const float inverse = 1.0f / scale;
  const __m512 factor = _mm512_set1_ps(inverse), unit = _mm512_set1_ps(inverse / grid.most);
  const __m512 step = _mm512_set1_ps(scale);
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < count; i += 16) {
    const __mmask16 here = First(count - i);
    const __m512 v = _mm512_abs_ps(_mm512_maskz_loadu_ps(here, values + i));
    const __m512 m = _mm512_min_ps(_mm512_mul_ps(v, factor), _mm512_set1_ps(grid.most));
    const __m512 shift = Shift(grid, m);
    const __m512 whole = _mm512_roundscale_ps(_mm512_scalef_ps(m, shift), kNearest);
    const __m512 near = _mm512_scalef_ps(whole, _mm512_sub_ps(_mm512_setzero_ps(), shift));
    const __m512 error = _mm512_sub_ps(_mm512_mul_ps(step, near), v);
    const __m512 t = _mm512_mul_ps(_mm512_abs_ps(error), unit);
    sum = _mm512_mask_add_ps(sum, here, sum, Power(t, low, high));
  }
  return _mm512_reduce_add_ps(sum);
}

void RtnFloatCodesAvx512(bool fp8, const float* values, int count, float scale, uint8_t* codes) {
  const FloatGrid grid = fp8 ? kE4M3 : kE2M1;
  const __m512 divisor = _mm512_set1_ps(scale);
  for (int i = 0; i < count; i += 16) {
    const __mmask16 here = First(count - i);
    const __m512 v = _mm512_maskz_loadu_ps(here, values + i);
    const __m512 m =
        _mm512_min_ps(_mm512_div_ps(_mm512_abs_ps(v), divisor), _mm512_set1_ps(grid.most));
    const __m512 shift = Shift(grid, m);
    const __m512i whole =
        _mm512_cvtps_epi32(_mm512_roundscale_ps(_mm512_scalef_ps(m, shift), kNearest));
    // Above the subnormal ones, every exponent has 2^mantissa codes.
    const __m512i exponent =
        _mm512_sub_epi32(_mm512_set1_epi32(grid.mantissa - grid.lowest), _mm512_cvtps_epi32(shift));
    const __m512i code = _mm512_add_epi32(whole, _mm512_slli_epi32(exponent, grid.mantissa));
    const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(v)) &
                               _mm512_cmpneq_epi32_mask(code, _mm512_setzero_si512());
    const __m512i with_sign =
        _mm512_mask_or_epi32(code, negative, code, _mm512_set1_epi32(fp8 ? 0x80 : 8));
    _mm_mask_storeu_epi8(codes + i, here, _mm512_cvtepi32_epi8(with_sign));
  }
}

void RtnPowersAvx512(const float* x, int count, float* out) {
  const __m512 low = _mm512_load_ps(kPowers), high = _mm512_load_ps(kPowers + 16);
  for (int i = 0; i < count; i += 16) {
    const __mmask16 here = First(count - i);
    _mm512_mask_storeu_ps(out + i, here, Power(_mm512_maskz_loadu_ps(here, x + i), low, high));
  }
}

void RtnCodesAvx512(const float* values, int count, float scale, float offset, float middle,
                    float top, uint8_t* codes) {
  const __m512 divisor = _mm512_set1_ps(scale), shift = _mm512_set1_ps(offset);
  const __m512 zero = _mm512_set1_ps(middle), most = _mm512_set1_ps(top);
  for (int i = 0; i < count; i += 16) {
    const __mmask16 here = First(count - i);
    const __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(here, values + i), shift);
    const __m512 u = _mm512_add_ps(_mm512_div_ps(v, divisor), zero);
    const __m512 code = _mm512_roundscale_ps(u, kNearest);
    const __m512 legal = _mm512_min_ps(_mm512_max_ps(code, _mm512_setzero_ps()), most);
    _mm_mask_storeu_epi8(codes + i, here, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(legal)));
  }
}

}  // namespace moert

#else  // another processor family

namespace moert {

void RtnRangeAvx512(const float*, int, float*, float*) {}
float RtnErrorSumAvx512(const float*, int, float, float, float) { return 0; }
void RtnLeastSumsAvx512(const float*, int, float, const float*, const float*, int, float*) {}
float RtnFloatErrorSumAvx512(bool, const float*, int, float) { return 0; }
void RtnFloatCodesAvx512(bool, const float*, int, float, uint8_t*) {}
void RtnPowersAvx512(const float*, int, float*) {}
void RtnCodesAvx512(const float*, int, float, float, float, float, uint8_t*) {}

}  // namespace moert

#endif
