#include "offline/hqq_lanes.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>

namespace moert {
namespace {

// 16 sums in double precision.
struct Sums {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  void Add(__m512 x) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  }
  // In double precision, where products of floats are exact.
  void AddProduct(__m512 a, __m512 b) {
    low = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                          _mm512_cvtps_pd(_mm512_castps512_ps256(b)), low);
    high = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)),
                           _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)), high);
  }
  void AddProduct(__m512 a, const double* b) {
    low = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_loadu_pd(b), low);
    high = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)), _mm512_loadu_pd(b + 8),
                           high);
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

inline __mmask16 Above(__m512 absolute, __m512 none_below) {
  return _mm512_cmp_ps_mask(absolute, none_below, _CMP_NLE_UQ);
}

// Each lane's progress through its candidates.
struct Lane {
  int candidate = 0, iteration = 0;
  double least = __builtin_inf();
  float squares = __builtin_inff();  // of the best so far
};

// The state of all lanes during a pass over the values.
struct Pass {
  alignas(64) float scale[kHqqLanes], zero[kHqqLanes], none_below[kHqqLanes], best[kHqqLanes];
  alignas(64) double absolute[kHqqLanes];
  Lane lane[kHqqLanes];
  __mmask16 active = 0;

  Pass(const HqqGroups& g, const HqqCandidates& c) {
    for (int i = 0; i < kHqqLanes; ++i) {
      scale[i] = 1;
      zero[i] = none_below[i] = best[i] = 0;
      BeginGroup(g, c, i);
    }
  }
  // Begins the lane's candidate. False: there is none left.
  bool Begin(const HqqGroups& g, const HqqCandidates& c, int i) {
    const int n = lane[i].candidate;
    if (n >= c.count[i]) return false;
    scale[i] = c.scale[n][i];
    zero[i] = c.zero[n][i];
    lane[i].iteration = 0;
    lane[i].least = __builtin_inf();
    none_below[i] = g.thresholds[0];
    return true;
  }
  // Begins the lane's group, if it has one.
  void BeginGroup(const HqqGroups& g, const HqqCandidates& c, int i) {
    const __mmask16 bit = static_cast<__mmask16>(1u << i);
    lane[i].candidate = 0;
    active = Begin(g, c, i) ? active | bit : active & static_cast<__mmask16>(~bit);
  }
  // Begins the next iteration. False: there is none left.
  bool Next(const HqqGroups& g, int i) {
    if (++lane[i].iteration >= g.iterations) return false;
    none_below[i] = g.thresholds[lane[i].iteration];
    return true;
  }
  // Residuals above the threshold are rare among weights, so they are shrunk one by one.
  __m512 Shrunk(const HqqGroups& g, __m512 residual, __mmask16 outliers) const {
    alignas(64) float lanes[kHqqLanes];
    _mm512_store_ps(lanes, residual);
    for (int i = 0; i < kHqqLanes; ++i) {
      lanes[i] = (outliers >> i & 1) != 0
                     ? HqqShrink(lanes[i], g.lp_norm, g.betas[lane[i].iteration])
                     : 0.0f;
    }
    return _mm512_load_ps(lanes);
  }
};

// Sums of one pass: |residual|, the zeros that fit the values, and residual^2 approximately. False:
// there were outliers, which only a pass with kOutliers takes into account.
template <bool kOutliers>
bool PassOfZeros(const HqqGroups& g, Pass* p, double* means, float* squares) {
  const __m512 top = _mm512_set1_ps(g.top), none_below = _mm512_load_ps(p->none_below);
  const __m512 scale = _mm512_load_ps(p->scale), zero = _mm512_load_ps(p->zero);
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), scale);
  Sums absolutes, mean;
  __m512 square = _mm512_setzero_ps(), most = square;
  for (int v = 0; v < g.count; ++v) {
    const __m512 value = _mm512_loadu_ps(g.values + v * kHqqLanes);
    __m512 place = _mm512_mul_ps(value, inverse);
    const __m512 code = Code(_mm512_add_ps(place, zero), top);
    const __m512 residual = _mm512_sub_ps(value, _mm512_mul_ps(_mm512_sub_ps(code, zero), scale));
    const __m512 absolute = Absolute(residual);
    absolutes.Add(absolute);
    square = _mm512_fmadd_ps(residual, residual, square);
    most = _mm512_max_ps(absolute, most);
    if (kOutliers) {
      const __mmask16 outliers = p->active & Above(absolute, none_below);
      const __m512 kept = _mm512_sub_ps(value, p->Shrunk(g, residual, outliers));
      place = _mm512_mul_ps(kept, inverse);
    }
    mean.Add(_mm512_sub_ps(code, place));
  }
  absolutes.Store(p->absolute);
  mean.Store(means);
  _mm512_storeu_ps(squares, square);
  return kOutliers || (p->active & Above(most, none_below)) == 0;
}

// NoneBetter: whether a lower bound of the squared error with any zero (what the scale's range cuts
// off at both ends) exceeds `most`. MostError: an upper bound of the best error so far, whose
// offset has not been rounded to bf16 yet.
bool NoneBetter(const HqqGroups& g, const HqqCandidates& c, int lane, int candidate, double most) {
  const double cut =
      double{c.span[lane]} - double{c.scale[candidate][lane]} * double{g.top} * (1 + 1e-5);
  return cut > 0 && cut * cut * 0.499 > most;
}

double MostError(const HqqGroups& g, double scale, double zero, double squares) {
  const double shift = __builtin_fabs(scale * zero) / 256;
  const double root = __builtin_sqrt(squares * 1.001) + shift * __builtin_sqrt(double(g.count));
  return root * root * 1.001;
}

}  // namespace

void HqqZerosAvx512(const HqqGroups& g, HqqCandidates* c, const HqqQueue& queue) {
  Pass p(g, *c);
  alignas(64) double means[kHqqLanes];
  alignas(64) float squares[kHqqLanes];
  double most[kHqqLanes];
  for (double& m : most) m = __builtin_inf();
  while (p.active != 0) {
    if (!PassOfZeros<false>(g, &p, means, squares)) PassOfZeros<true>(g, &p, means, squares);
    for (int i = 0; i < kHqqLanes; ++i) {
      if ((p.active >> i & 1) == 0) continue;
      Lane& lane = p.lane[i];
      if (p.absolute[i] < lane.least) {
        lane.least = p.absolute[i];
        lane.squares = squares[i];
        p.best[i] = p.zero[i];
        const float next = static_cast<float>(means[i] / static_cast<double>(g.count));
        const bool moved = next != p.zero[i];  // otherwise the next sum is the same
        p.zero[i] = next;
        if (moved && p.Next(g, i)) continue;
      }
      c->zero[lane.candidate][i] = p.best[i];
      const double bound = MostError(g, p.scale[i], p.best[i], lane.squares);
      if (bound < most[i]) most[i] = bound;
      ++lane.candidate;
      if (lane.candidate < c->count[i] && NoneBetter(g, *c, i, lane.candidate, most[i])) {
        c->count[i] = lane.candidate;
      }
      if (p.Begin(g, *c, i)) continue;
      queue.next(queue.context, i);
      most[i] = __builtin_inf();
      p.BeginGroup(g, *c, i);
    }
  }
}

namespace {

// Sums of one pass: |residual|, code * value and code^2. The latter are integers that a float holds
// exactly. False: as above.
template <bool kOutliers>
bool PassOfScales(const HqqGroups& g, Pass* p, double* dots, double* squares) {
  constexpr int kBlock = 1024;
  const __m512 top = _mm512_set1_ps(g.top), middle = _mm512_set1_ps(g.middle);
  const __m512 none_below = _mm512_load_ps(p->none_below), scale = _mm512_load_ps(p->scale);
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), scale);
  Sums absolutes, dot, square;
  __m512 most = _mm512_setzero_ps();
  for (int begin = 0; begin < g.count; begin += kBlock) {
    const int end = begin + kBlock < g.count ? begin + kBlock : g.count;
    __m512 whole = _mm512_setzero_ps();
    for (int v = begin; v < end; ++v) {
      const __m512 value = _mm512_loadu_ps(g.values + v * kHqqLanes);
      const __m512 code =
          _mm512_sub_ps(Code(_mm512_add_ps(_mm512_mul_ps(value, inverse), middle), top), middle);
      const __m512 residual = _mm512_sub_ps(value, _mm512_mul_ps(code, scale));
      const __m512 absolute = Absolute(residual);
      absolutes.Add(absolute);
      most = _mm512_max_ps(absolute, most);
      whole = _mm512_fmadd_ps(code, code, whole);
      if (kOutliers) {
        const __mmask16 outliers = p->active & Above(absolute, none_below);
        dot.AddProduct(code, _mm512_sub_ps(value, p->Shrunk(g, residual, outliers)));
      } else {
        dot.AddProduct(code, g.doubles + v * kHqqLanes);
      }
    }
    square.Add(whole);
  }
  absolutes.Store(p->absolute);
  dot.Store(dots);
  square.Store(squares);
  return kOutliers || (p->active & Above(most, none_below)) == 0;
}

}  // namespace

void HqqScalesAvx512(const HqqGroups& g, HqqCandidates* c, const HqqQueue& queue) {
  Pass p(g, *c);
  alignas(64) double dots[kHqqLanes], squares[kHqqLanes];
  while (p.active != 0) {
    if (!PassOfScales<false>(g, &p, dots, squares)) PassOfScales<true>(g, &p, dots, squares);
    for (int i = 0; i < kHqqLanes; ++i) {
      if ((p.active >> i & 1) == 0) continue;
      Lane& lane = p.lane[i];
      if (p.absolute[i] < lane.least) {
        lane.least = p.absolute[i];
        p.best[i] = p.scale[i];
        const float next = squares[i] > 0 ? static_cast<float>(dots[i] / squares[i]) : 0.0f;
        const bool moved = next > 0 && next != p.scale[i];
        p.scale[i] = next;
        if (moved && p.Next(g, i)) continue;
      }
      c->scale[lane.candidate][i] = p.best[i];
      ++lane.candidate;
      if (p.Begin(g, *c, i)) continue;
      queue.next(queue.context, i);
      p.scale[i] = 1;
      p.BeginGroup(g, *c, i);
    }
  }
}

void HqqErrorsAvx512(const float* values, int count, float top, float middle, bool symmetric,
                     const float* scales, const float* offsets, int candidates, double* errors) {
  const __m512 most = _mm512_set1_ps(top), centre = _mm512_set1_ps(middle);
  const __m512 before = symmetric ? centre : _mm512_setzero_ps();
  for (int c = 0; c < candidates; c += kHqqLanes) {  // a candidate a lane
    const int some = candidates - c < kHqqLanes ? candidates - c : kHqqLanes;
    const __mmask16 here = static_cast<__mmask16>((1u << some) - 1);
    const __m512 scale = _mm512_mask_loadu_ps(_mm512_set1_ps(1), here, scales + c);
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), scale);
    const __m512 offset =
        symmetric ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(here, offsets + c);
    const __m512 zero = symmetric ? centre : _mm512_mul_ps(offset, inverse);
    Sums sum;
    for (int v = 0; v < count; ++v) {
      const __m512 value = _mm512_set1_ps(values[v]);
      const __m512 code = Code(_mm512_add_ps(_mm512_mul_ps(value, inverse), zero), most);
      const __m512 back = _mm512_sub_ps(_mm512_mul_ps(scale, _mm512_sub_ps(code, before)), offset);
      const __m512 e = _mm512_sub_ps(back, value);
      sum.AddProduct(e, e);
    }
    alignas(64) double all[kHqqLanes];
    sum.Store(all);
    for (int i = 0; i < some; ++i) errors[c + i] = all[i];
  }
}

}  // namespace moert

#else  // another processor family

namespace moert {

void HqqZerosAvx512(const HqqGroups&, HqqCandidates*, const HqqQueue&) {}
void HqqScalesAvx512(const HqqGroups&, HqqCandidates*, const HqqQueue&) {}
void HqqErrorsAvx512(const float*, int, float, float, bool, const float*, const float*, int,
                     double*) {}

}  // namespace moert

#endif
