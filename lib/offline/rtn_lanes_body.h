// The functions of RtnLanes over a vector type V of one instruction set. Include it only in files
// compiled for that set: V and everything here is local to such a file.
#ifndef MOERT_LIB_OFFLINE_RTN_LANES_BODY_H_
#define MOERT_LIB_OFFLINE_RTN_LANES_BODY_H_

#include "offline/rtn_lanes.h"

namespace moert {
namespace {

constexpr int kLowestExponent = -22;  // below, a power is nothing beside a sum's rounding

// 2^(2.4 e) for e = kLowestExponent ... kLowestExponent + 31. A constant: nothing of these files
// may run before the processor was asked.
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
template <class V>
typename V::F Power(typename V::F x) {
  const auto bits = V::Bits(V::Abs(x));
  const auto exponent = V::Clamp(V::template ShiftRight<23>(bits), V::Int(127 + kLowestExponent),
                                 V::Int(127 + kLowestExponent + 31));
  const auto scale = V::Lookup(kPowers, V::Minus(exponent, V::Int(127 + kLowestExponent)));
  const auto mantissa = V::Or(V::And(bits, V::Int(0x007fffff)), V::Int(0x3f800000));
  const auto m = V::Sub(V::Floats(mantissa), V::Set(1.5f));
  auto p = V::Set(0.0038924550817068817f);
  p = V::Fma(p, m, V::Set(-0.017984416125187874f));
  p = V::Fma(p, m, V::Set(0.17561396007233684f));
  p = V::Fma(p, m, V::Set(1.975852713473384f));
  p = V::Fma(p, m, V::Set(4.233884673752479f));
  p = V::Fma(p, m, V::Set(2.6461772447060485f));
  return V::Mul(p, scale);
}

template <class V>
void Order(typename V::F* low, typename V::F* high) {
  const auto least = V::Min(*low, *high);
  *high = V::Max(*low, *high);
  *low = least;
}

// For two zeros of different sign, min and max return the second operand: the positive one, like
// std::min and std::max in the scalar code.
template <class V>
int Arrange(const float* values, int count, float* out, float* low, float* high) {
  constexpr int L = V::kLanes;
  const int whole = count / L * L;
  auto least = V::Set(0), most = V::Set(0);
  int i = 0, outer = whole;
  if (whole >= 3 * L) {  // the largest and the smallest of each lane go to the front
    most = V::Load(values), least = V::Load(values + L);
    Order<V>(&least, &most);
    for (i = outer = 2 * L; i < whole; i += L) {
      auto v = V::Load(values + i);
      Order<V>(&v, &most), Order<V>(&least, &v);
      V::Store(out + i, v);
    }
    V::Store(out, most), V::Store(out + L, least);
  }
  for (; i < count; i += L) {
    const int n = count - i < L ? count - i : L;
    const auto v = V::LoadFirst(values + i, n);
    V::StoreFirst(out + i, v, n);
    least = V::Min(v, least), most = V::Max(v, most);
  }
  *low = V::Least(V::Min(least, V::Set(0)));
  *high = V::Most(V::Max(most, V::Set(0)));
  return outer;
}

template <class V>
typename V::F ToBf16(typename V::F x) {
  const auto bits = V::Bits(x);
  const auto odd = V::And(V::template ShiftRight<16>(bits), V::Int(1));
  const auto rounded = V::Plus(bits, V::Plus(odd, V::Int(0x7fff)));
  return V::Floats(V::And(rounded, V::Int(static_cast<int>(0xffff0000u))));
}

template <class V>
void Spread(const RtnForm& form, float low, float high, const float* shares, int count,
            float* scale, float* offset) {
  const auto steps = V::Set(form.steps);
  for (int i = 0; i < count; i += V::kLanes) {
    const int n = count - i < V::kLanes ? count - i : V::kLanes;
    const auto share = V::LoadFirst(shares + i, n);
    const auto from = V::Mul(V::Set(low), share), to = V::Mul(V::Set(high), share);
    const bool centred = form.offsets == RtnForm::kNone;
    const auto range = centred ? V::Max(V::Abs(from), V::Abs(to)) : V::Sub(to, from);
    const auto wide = V::Div(range, steps);
    const auto stored = form.half ? V::ToHalf(wide) : ToBf16<V>(wide);
    V::StoreFirst(scale + i, stored, n);
    if (form.offsets == RtnForm::kZeroPoints) {  // -0 stays, as in the scalar code
      const auto zero = V::Round(V::Div(V::Negate(from), stored));
      V::StoreFirst(offset + i, V::Min(V::Max(V::Set(0), zero), steps), n);
    } else {
      V::StoreFirst(offset + i, centred ? V::Set(0) : ToBf16<V>(V::Negate(from)), n);
    }
  }
}

template <class V>
void CutErrors(const RtnRanges& r, float low, float high, float unit, float* out) {
  const auto inverse = V::Set(1 / unit), slack = V::Set(1e-5f * (high - low));
  for (int i = 0; i < r.count; i += V::kLanes) {
    const int n = r.count - i < V::kLanes ? r.count - i : V::kLanes;
    const auto scale = V::LoadFirst(r.scale + i, n), stored = V::LoadFirst(r.offset + i, n);
    const auto offset = r.zero_points ? V::Mul(stored, scale) : stored;
    const auto first = V::Sub(V::Mul(scale, V::Set(r.bottom)), offset);
    const auto last = V::Add(first, V::Mul(scale, V::Set(r.span)));
    const auto below = V::Sub(V::Sub(first, V::Set(low)), slack);
    const auto above = V::Sub(V::Sub(V::Set(high), last), slack);
    const auto zero = V::Set(0);
    V::StoreFirst(out + i,
                  V::Add(Power<V>(V::Mul(V::Max(below, zero), inverse)),
                         Power<V>(V::Mul(V::Max(above, zero), inverse))),
                  n);
  }
}

template <class V>
float ErrorSum(const float* values, int count, float top, float inverse, float zero) {
  auto sum = V::Set(0);
  for (int i = 0; i < count; i += V::kLanes) {
    const int n = count - i < V::kLanes ? count - i : V::kLanes;
    const auto v = V::LoadFirst(values + i, n);
    const auto u = V::Add(V::Mul(v, V::Set(inverse)), V::Set(zero));
    const auto code = V::Round(V::Min(V::Max(u, V::Set(0)), V::Set(top)));
    sum = V::Add(sum, V::KeepFirst(Power<V>(V::Sub(u, code)), n));
  }
  return V::Total(sum);
}

// p(t) = t^0.4 up to t = 1/2: times error^2 no more than t^2.4 but for 6.2e-5.
template <class V>
typename V::F LowFactor(typename V::F t) {
  auto p = V::Set(1.5788605213f);
  p = V::Fma(p, t, V::Set(-2.3945972919f));
  p = V::Fma(p, t, V::Set(1.8412247896f));
  return V::Fma(p, t, V::Set(0.2387753427f));
}
// sum + |u - round(clamp(u))|^2.4. Beyond 1/2, where codes end, p is the chord of t^0.4 to t = 4.
template <class V>
typename V::F AddOuter(typename V::F u, typename V::F top, typename V::F sum) {
  const auto error = V::Sub(u, V::Round(V::Min(V::Max(u, V::Set(0)), top)));
  const auto t = V::Abs(error), inner = V::Min(t, V::Set(0.5f));
  const auto beyond = V::Min(V::Sub(t, inner), V::Set(3.5f));
  const auto p = V::Fma(beyond, V::Set(0.2809f), LowFactor<V>(inner));
  return V::Fma(V::Mul(error, error), p, sum);
}
template <class V>
typename V::F AddInner(typename V::F u, typename V::F sum) {
  const auto error = V::Fraction(u);
  return V::Fma(V::Mul(error, error), LowFactor<V>(V::Abs(error)), sum);
}

// Several ranges at once: their sums do not wait for each other.
template <class V>
void LeastSums(const float* values, int count, int outer, const RtnRanges& r, float* sums) {
  constexpr int N = V::kAtOnce;
  const auto top = V::Set(r.span);
  for (int c = 0; c < r.count; c += N) {
    typename V::F factor[N], shift[N], sum[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const int at = c + j < r.count ? c + j : r.count - 1;
      const float inverse = 1 / r.scale[at];
      factor[j] = V::Set(inverse);
      shift[j] = V::Set((r.zero_points ? r.offset[at] : r.offset[at] * inverse) - r.bottom);
      sum[j] = V::Set(0);
    }
    const int whole = count / V::kLanes * V::kLanes;
    int i = 0;
    for (; i < outer; i += V::kLanes) {
      const auto v = V::Load(values + i);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sum[j] = AddOuter<V>(V::Fma(v, factor[j], shift[j]), top, sum[j]);
    }
    for (; i < whole; i += V::kLanes) {
      const auto v = V::Load(values + i);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sum[j] = AddInner<V>(V::Fma(v, factor[j], shift[j]), sum[j]);
    }
    for (int j = 0; i < count && j < N; ++j) {
      const auto v = V::LoadFirst(values + i, count - i);
      const auto more = AddOuter<V>(V::Fma(v, factor[j], shift[j]), top, sum[j]);
      sum[j] = V::FirstOr(more, count - i, sum[j]);
    }
    for (int j = 0; j < N && c + j < r.count; ++j) sums[c + j] = V::Total(sum[j]);
  }
}

template <class V>
float LeastErrors(const float* values, int count, int outer, const RtnRanges& r, const float* unit,
                  float relative, float slack, float* errors) {
  LeastSums<V>(values, count, outer, r, errors);
  const auto none = V::Set(__builtin_inff());
  auto least = none;
  for (int i = 0; i < r.count; i += V::kLanes) {
    const int n = r.count - i < V::kLanes ? r.count - i : V::kLanes;
    const auto sum = V::Mul(V::LoadFirst(errors + i, n), V::Set(1 - relative));
    const auto error = V::Mul(V::LoadFirst(unit + i, n), V::Sub(sum, V::Set(slack)));
    V::StoreFirst(errors + i, error, n);
    least = V::Min(least, V::FirstOr(error, n, none));
  }
  return V::Least(least);
}

// Floats of few bits.
struct FloatGrid {
  int mantissa;  // bits
  int lowest;    // exponent of the normal ones
  float most;
};
constexpr FloatGrid GridOf(bool fp8) { return fp8 ? FloatGrid{3, -6, 448} : FloatGrid{1, 0, 6}; }

// x >= 0: the exponent of the grid's values around it, in steps of which they are whole numbers.
template <class V>
typename V::I StepExponent(const FloatGrid& grid, typename V::F x) {
  const auto exponent = V::template ShiftRight<23>(V::Bits(x));
  const auto lowest = V::Int(127 + grid.lowest);
  return V::Minus(V::Clamp(exponent, lowest, V::Int(255)), V::Int(127 + grid.mantissa));
}
template <class V>
typename V::F TwoTo(typename V::I exponent) {
  return V::Floats(V::template ShiftLeft<23>(V::Plus(exponent, V::Int(127))));
}

template <class V>
float FloatErrorSum(bool fp8, const float* values, int count, float scale) {
  const FloatGrid grid = GridOf(fp8);
  const float inverse = 1.0f / scale;
  auto sum = V::Set(0);
  for (int i = 0; i < count; i += V::kLanes) {
    const int n = count - i < V::kLanes ? count - i : V::kLanes;
    const auto v = V::Abs(V::LoadFirst(values + i, n));
    const auto m = V::Min(V::Mul(v, V::Set(inverse)), V::Set(grid.most));
    const auto step = StepExponent<V>(grid, m);
    const auto whole = V::Round(V::Mul(m, TwoTo<V>(V::Minus(V::Int(0), step))));
    const auto error = V::Sub(V::Mul(V::Set(scale), V::Mul(whole, TwoTo<V>(step))), v);
    sum = V::Add(sum, V::KeepFirst(Power<V>(V::Mul(error, V::Set(inverse / grid.most))), n));
  }
  return V::Total(sum);
}

template <class V>
void FloatCodes(bool fp8, const float* values, int count, float scale, uint8_t* codes) {
  const FloatGrid grid = GridOf(fp8);
  for (int i = 0; i < count; i += V::kLanes) {
    const int n = count - i < V::kLanes ? count - i : V::kLanes;
    const auto v = V::LoadFirst(values + i, n);
    const auto m = V::Min(V::Div(V::Abs(v), V::Set(scale)), V::Set(grid.most));
    const auto step = StepExponent<V>(grid, m);
    const auto whole = V::ToInts(V::Mul(m, TwoTo<V>(V::Minus(V::Int(0), step))));
    // Above the subnormal ones, every exponent has 2^mantissa codes.
    const auto above = V::Plus(step, V::Int(grid.mantissa - grid.lowest));
    const auto more = fp8 ? V::template ShiftLeft<3>(above) : V::template ShiftLeft<1>(above);
    const auto code = V::Plus(whole, more);
    const auto sign = fp8 ? V::And(V::template ShiftRight<24>(V::Bits(v)), V::Int(0x80))
                          : V::And(V::template ShiftRight<28>(V::Bits(v)), V::Int(8));
    V::StoreBytes(codes + i, V::Or(code, V::WhereNot0(code, sign)), n);
  }
}

template <class V>
void Powers(const float* x, int count, float factor, float* out) {
  for (int i = 0; i < count; i += V::kLanes) {
    const int n = count - i < V::kLanes ? count - i : V::kLanes;
    V::StoreFirst(out + i, Power<V>(V::Mul(V::LoadFirst(x + i, n), V::Set(factor))), n);
  }
}

template <class V>
void IntCodes(const float* values, int count, float scale, float offset, float middle, float top,
              uint8_t* codes) {
  for (int i = 0; i < count; i += V::kLanes) {
    const int n = count - i < V::kLanes ? count - i : V::kLanes;
    const auto v = V::Add(V::LoadFirst(values + i, n), V::Set(offset));
    const auto code = V::Round(V::Add(V::Div(v, V::Set(scale)), V::Set(middle)));
    V::StoreBytes(codes + i, V::ToInts(V::Min(V::Max(code, V::Set(0)), V::Set(top))), n);
  }
}

template <class V>
constexpr RtnLanes LanesOf(const char* name) {
  return {name,           Arrange<V>,       Spread<V>, CutErrors<V>,  ErrorSum<V>,
          LeastErrors<V>, FloatErrorSum<V>, Powers<V>, FloatCodes<V>, IntCodes<V>};
}

}  // namespace
}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_LANES_BODY_H_
