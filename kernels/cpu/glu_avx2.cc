// Gated activations, AVX2 and FMA: act(gate) * up. The method of glu_avx512.cc.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

__m256 Exp(__m256 x) {
  // min and max return their second operand if one is NaN.
  x = _mm256_max_ps(_mm256_set1_ps(-87.0f), _mm256_min_ps(_mm256_set1_ps(88.0f), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.0f / 5040);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  // 2^n; |n| <= 127 keeps the exponent legal. A NaN's n is any number: p is NaN.
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

// x * sigmoid(z) * up
__m256 Gate(__m256 x, __m256 z, __m256 up) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = Exp(_mm256_sub_ps(_mm256_setzero_ps(), z));
  return _mm256_mul_ps(_mm256_div_ps(x, _mm256_add_ps(one, e)), up);
}

}  // namespace

void GluSiluAvx2(const float* gate, const float* up, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 x = _mm256_loadu_ps(gate + i);
    _mm256_storeu_ps(out + i, Gate(x, x, _mm256_loadu_ps(up + i)));
  }
}

// (1 + tanh s) / 2 is sigmoid(2 s).
void GluGeluTanhAvx2(const float* gate, const float* up, int64_t count, float* out) {
  const __m256 linear = _mm256_set1_ps(1.59576912f);   // 2 sqrt(2 / pi)
  const __m256 cubic = _mm256_set1_ps(0.0713548163f);  // 0.044715 of it
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 x = _mm256_loadu_ps(gate + i);
    const __m256 z = _mm256_mul_ps(x, _mm256_fmadd_ps(_mm256_mul_ps(x, x), cubic, linear));
    _mm256_storeu_ps(out + i, Gate(x, z, _mm256_loadu_ps(up + i)));
  }
}

}  // namespace moert::kernels
#endif
