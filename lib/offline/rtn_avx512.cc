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

}  // namespace

void RtnErrorSumsAvx512(const float* values, int count, float top, const float* inverse,
                        const float* zero, int candidates, float* sums) {
  const __m512 low = _mm512_load_ps(kPowers), high = _mm512_load_ps(kPowers + 16);
  const __m512 most = _mm512_set1_ps(top), none = _mm512_setzero_ps();
  for (int c = 0; c < candidates; ++c) {
    const __m512 factor = _mm512_set1_ps(inverse[c]), shift = _mm512_set1_ps(zero[c]);
    __m512 sum = none;
    for (int i = 0; i < count; i += 16) {
      const __mmask16 here =
          count - i >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << (count - i)) - 1);
      const __m512 v = _mm512_maskz_loadu_ps(here, values + i);
      const __m512 u = _mm512_add_ps(_mm512_mul_ps(v, factor), shift);
      const __m512 code = _mm512_roundscale_ps(_mm512_min_ps(_mm512_max_ps(u, none), most),
                                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      const __m512 power = Power(_mm512_sub_ps(u, code), low, high);
      sum = _mm512_mask_add_ps(sum, here, sum, power);
    }
    sums[c] = _mm512_reduce_add_ps(sum);
  }
}

void RtnPowersAvx512(const float* x, int count, float* out) {
  const __m512 low = _mm512_load_ps(kPowers), high = _mm512_load_ps(kPowers + 16);
  for (int i = 0; i < count; i += 16) {
    const __mmask16 here =
        count - i >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << (count - i)) - 1);
    _mm512_mask_storeu_ps(out + i, here, Power(_mm512_maskz_loadu_ps(here, x + i), low, high));
  }
}

void RtnCodesAvx512(const float* values, int count, float scale, float offset, float middle,
                    float top, uint8_t* codes) {
  const __m512 divisor = _mm512_set1_ps(scale), shift = _mm512_set1_ps(offset);
  const __m512 zero = _mm512_set1_ps(middle), most = _mm512_set1_ps(top);
  for (int i = 0; i < count; i += 16) {
    const __mmask16 here =
        count - i >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << (count - i)) - 1);
    const __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(here, values + i), shift);
    const __m512 u = _mm512_add_ps(_mm512_div_ps(v, divisor), zero);
    const __m512 code = _mm512_roundscale_ps(u, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 legal = _mm512_min_ps(_mm512_max_ps(code, _mm512_setzero_ps()), most);
    _mm_mask_storeu_epi8(codes + i, here, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(legal)));
  }
}

}  // namespace moert

#else  // another processor family

namespace moert {

void RtnErrorSumsAvx512(const float*, int, float, const float*, const float*, int, float*) {}
void RtnPowersAvx512(const float*, int, float*) {}
void RtnCodesAvx512(const float*, int, float, float, float, float, uint8_t*) {}

}  // namespace moert

#endif
