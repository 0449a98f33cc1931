// Gated activations, AVX-512: act(gate) * up.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

// e^x to about 1 ulp for x in [-87, 88], clamped outside; NaN stays NaN. x = n ln 2 + r with
// |r| <= ln 2 / 2, then the Taylor polynomial of degree 7 of e^r (its error is below 2^-27 there).
__m512 Exp(__m512 x) {
  // min and max return their second operand if one is NaN.
  x = _mm512_max_ps(_mm512_set1_ps(-87.0f), _mm512_min_ps(_mm512_set1_ps(88.0f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts: n times the first is exact.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// x * sigmoid(z) * up
__m512 Gate(__m512 x, __m512 z, __m512 up) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 e = Exp(_mm512_sub_ps(_mm512_setzero_ps(), z));
  return _mm512_mul_ps(_mm512_div_ps(x, _mm512_add_ps(one, e)), up);
}

}  // namespace

void GluSiluAvx512(const float* gate, const float* up, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 x = _mm512_loadu_ps(gate + i);
    _mm512_storeu_ps(out + i, Gate(x, x, _mm512_loadu_ps(up + i)));
  }
}

// (1 + tanh s) / 2 is sigmoid(2 s).
void GluGeluTanhAvx512(const float* gate, const float* up, int64_t count, float* out) {
  const __m512 linear = _mm512_set1_ps(1.59576912f);   // 2 sqrt(2 / pi)
  const __m512 cubic = _mm512_set1_ps(0.0713548163f);  // 0.044715 of it
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 x = _mm512_loadu_ps(gate + i);
    const __m512 z = _mm512_mul_ps(x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), cubic, linear));
    _mm512_storeu_ps(out + i, Gate(x, z, _mm512_loadu_ps(up + i)));
  }
}

}  // namespace moert::kernels
#endif
