#include "offline/hqq_lanes.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>

namespace moert {
namespace {

constexpr int kLanes = 16;

// 16 sums in double precision.
struct Sums {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  void Add(__m512 x) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  }
  // The product in double precision.
  void AddProduct(__m512 a, __m512 b) {
    low = _mm512_add_pd(low, _mm512_mul_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                                           _mm512_cvtps_pd(_mm512_castps512_ps256(b))));
    high = _mm512_add_pd(high, _mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)),
                                             _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1))));
  }
  void Store(double* out) const {
    _mm512_storeu_pd(out, low);
    _mm512_storeu_pd(out + 8, high);
  }
};

inline __m512 Absolute(__m512 x) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}

inline __m512 Code(__m512 u, __m512 top) {
  return _mm512_roundscale_ps(_mm512_min_ps(_mm512_max_ps(u, _mm512_setzero_ps()), top),
                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Residuals above the threshold are rare among weights: they are shrunk one by one.
inline __m512 Shrink(__m512 residual, __m512 none_below, double p, double beta) {
  const __mmask16 above = _mm512_cmp_ps_mask(Absolute(residual), none_below, _CMP_NLE_UQ);
  if (above == 0) return _mm512_setzero_ps();
  alignas(64) float lanes[kLanes];
  _mm512_store_ps(lanes, residual);
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = (above >> i & 1) != 0 ? HqqShrink(lanes[i], p, beta) : 0.0f;
  }
  return _mm512_load_ps(lanes);
}

inline float Threshold(double p, double beta) {
  return static_cast<float>(__builtin_pow(beta, 1 / (p - 2)));
}

}  // namespace

void HqqZerosAvx512(const HqqGroup& g, int candidates, const float* scales, float* zeros) {
  const __m512 top = _mm512_set1_ps(g.top);
  for (int c = 0; c < candidates; c += kLanes) {
    const int n = candidates - c < kLanes ? candidates - c : kLanes;
    const __mmask16 here = static_cast<__mmask16>((1u << n) - 1);
    const __m512 scale = _mm512_mask_loadu_ps(_mm512_set1_ps(1), here, scales + c);
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), scale);
    __m512 zero = _mm512_maskz_loadu_ps(here, zeros + c);
    __m512 best = zero;
    double least[kLanes], absolute[kLanes], mean[kLanes];
    for (double& l : least) l = __builtin_inf();
    __mmask16 active = here;
    double beta = g.beta;
    for (int i = 0; i < g.iterations && active != 0; ++i) {
      const __m512 none_below = _mm512_set1_ps(Threshold(g.lp_norm, beta));
      Sums absolutes, means;
      for (int v = 0; v < g.count; ++v) {
        const __m512 value = _mm512_set1_ps(g.values[v]);
        const __m512 code = Code(_mm512_add_ps(_mm512_mul_ps(value, inverse), zero), top);
        const __m512 residual =
            _mm512_sub_ps(value, _mm512_mul_ps(_mm512_sub_ps(code, zero), scale));
        absolutes.Add(Absolute(residual));
        const __m512 kept = _mm512_sub_ps(value, Shrink(residual, none_below, g.lp_norm, beta));
        means.Add(_mm512_sub_ps(code, _mm512_mul_ps(kept, inverse)));
      }
      absolutes.Store(absolute);
      means.Store(mean);
      float next[kLanes];
      __mmask16 better = 0;
      for (int lane = 0; lane < kLanes; ++lane) {
        next[lane] = 0;
        if ((active >> lane & 1) == 0 || !(absolute[lane] < least[lane])) continue;
        better = static_cast<__mmask16>(better | 1u << lane);
        least[lane] = absolute[lane];
        next[lane] = static_cast<float>(mean[lane] / static_cast<double>(g.count));
      }
      active = better;
      best = _mm512_mask_mov_ps(best, better, zero);
      zero = _mm512_mask_loadu_ps(zero, better, next);
      beta *= g.kappa;
    }
    _mm512_mask_storeu_ps(zeros + c, here, best);
  }
}

void HqqScalesAvx512(const HqqGroup& g, int candidates, float* scales) {
  const __m512 top = _mm512_set1_ps(g.top), middle = _mm512_set1_ps(g.middle);
  for (int c = 0; c < candidates; c += kLanes) {
    const int n = candidates - c < kLanes ? candidates - c : kLanes;
    const __mmask16 here = static_cast<__mmask16>((1u << n) - 1);
    __m512 scale = _mm512_mask_loadu_ps(_mm512_set1_ps(1), here, scales + c);
    __m512 best = scale;
    double least[kLanes], absolute[kLanes], dot[kLanes], square[kLanes];
    for (double& l : least) l = __builtin_inf();
    __mmask16 active = here & _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_GT_OQ);
    double beta = g.beta;
    for (int i = 0; i < g.iterations && active != 0; ++i) {
      const __m512 none_below = _mm512_set1_ps(Threshold(g.lp_norm, beta));
      const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), scale);
      Sums absolutes, dots, squares;
      for (int v = 0; v < g.count; ++v) {
        const __m512 value = _mm512_set1_ps(g.values[v]);
        const __m512 code =
            _mm512_sub_ps(Code(_mm512_add_ps(_mm512_mul_ps(value, inverse), middle), top), middle);
        const __m512 residual = _mm512_sub_ps(value, _mm512_mul_ps(code, scale));
        absolutes.Add(Absolute(residual));
        dots.AddProduct(code, _mm512_sub_ps(value, Shrink(residual, none_below, g.lp_norm, beta)));
        squares.AddProduct(code, code);
      }
      absolutes.Store(absolute);
      dots.Store(dot);
      squares.Store(square);
      float next[kLanes];
      __mmask16 better = 0, more = 0;
      for (int lane = 0; lane < kLanes; ++lane) {
        next[lane] = 0;
        if ((active >> lane & 1) == 0 || !(absolute[lane] < least[lane])) continue;
        better = static_cast<__mmask16>(better | 1u << lane);
        least[lane] = absolute[lane];
        if (!(square[lane] > 0)) continue;
        next[lane] = static_cast<float>(dot[lane] / square[lane]);
        if (next[lane] > 0) more = static_cast<__mmask16>(more | 1u << lane);
      }
      best = _mm512_mask_mov_ps(best, better, scale);
      scale = _mm512_mask_loadu_ps(scale, more, next);
      active = more;
      beta *= g.kappa;
    }
    _mm512_mask_storeu_ps(scales + c, here, best);
  }
}

void HqqErrorsAvx512(const HqqGroup& g, int candidates, const float* scales, const float* offsets,
                     double* errors) {
  const __m512 top = _mm512_set1_ps(g.top);
  for (int c = 0; c < candidates; c += kLanes) {
    const int n = candidates - c < kLanes ? candidates - c : kLanes;
    const __mmask16 here = static_cast<__mmask16>((1u << n) - 1);
    const __m512 scale = _mm512_mask_loadu_ps(_mm512_set1_ps(1), here, scales + c);
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), scale);
    const __m512 offset =
        offsets == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(here, offsets + c);
    const __m512 middle = _mm512_set1_ps(g.middle);
    const __m512 zero = offsets == nullptr ? middle : _mm512_mul_ps(offset, inverse);
    Sums sum;
    for (int v = 0; v < g.count; ++v) {
      const __m512 value = _mm512_set1_ps(g.values[v]);
      const __m512 code = Code(_mm512_add_ps(_mm512_mul_ps(value, inverse), zero), top);
      const __m512 back = offsets == nullptr ? _mm512_mul_ps(scale, _mm512_sub_ps(code, middle))
                                             : _mm512_sub_ps(_mm512_mul_ps(scale, code), offset);
      const __m512 e = Absolute(_mm512_sub_ps(back, value));
      sum.AddProduct(e, e);
    }
    double all[kLanes];
    sum.Store(all);
    for (int lane = 0; lane < n; ++lane) errors[c + lane] = all[lane];
  }
}

}  // namespace moert

#else  // another processor family

namespace moert {

void HqqZerosAvx512(const HqqGroup&, int, const float*, float*) {}
void HqqScalesAvx512(const HqqGroup&, int, float*) {}
void HqqErrorsAvx512(const HqqGroup&, int, const float*, const float*, double*) {}

}  // namespace moert

#endif
