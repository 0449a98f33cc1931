#include "row_product.h"

#include <cstring>

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,f16c,fma"))), \
    apply_to = function)
#else
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 finds some in its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,f16c,fma")
#endif

#include "row_formats.h"

namespace moert_ggml {
namespace rows {
namespace {

// Codes of all columns, then the scale of each group, then scale times the sum of codes, which the
// weights' offsets are multiplied with. Arrays end at whole steps, padded with zeros.
struct Packed {
  Packed(int64_t columns, int group) {
    const int64_t step = 16 * group;
    codes = (columns + step - 1) / step * step;
    groups = codes / group;
  }
  size_t bytes() const { return static_cast<size_t>(codes) + 2 * sizeof(float) * groups; }
  int64_t codes, groups;
};

template <int kGroup>
size_t PackedBytes(int64_t columns) {
  return Packed(columns, kGroup).bytes();
}

template <int kGroup>
void Pack(const float* row, void* packed, int64_t columns) {
  const Packed layout(columns, kGroup);
  auto* const codes = static_cast<int8_t*>(packed);
  auto* const scales = reinterpret_cast<float*>(codes + layout.codes);
  float* const sums = scales + layout.groups;
  std::memset(packed, 0, layout.bytes());
  for (int64_t c = 0; c < columns; c += 32) {
    const __m512 a = _mm512_loadu_ps(row + c), b = _mm512_loadu_ps(row + c + 16);
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const float scale = most / 127;
    const __m512 per = _mm512_set1_ps(scale > 0 ? 1 / scale : 0);
    const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(a, per));
    const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(b, per));
    auto* const to = reinterpret_cast<__m128i*>(codes + c);
    _mm_storeu_si128(to, _mm512_cvtepi32_epi8(first));
    _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(second));
    const auto sum_of = [scale](__m512i all) {
      return scale * static_cast<float>(_mm512_reduce_add_epi32(all));
    };
    if (kGroup == 32) {
      scales[c / 32] = scale;
      sums[c / 32] = sum_of(_mm512_add_epi32(first, second));
    } else {
      scales[c / 16] = scales[c / 16 + 1] = scale;
      sums[c / 16] = sum_of(first);
      sums[c / 16 + 1] = sum_of(second);
    }
  }
}

// Lane j of 16 is the scale of codes [4 * j, 4 * j + 4) among the 64 codes from 64 * i on.
template <int kGroup>
__m512i LanesOf(int i) {
  constexpr int kShift = kGroup == 32 ? 3 : 2;
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi32(_mm512_srli_epi32(lane, kShift), _mm512_set1_epi32((64 / kGroup) * i));
}

constexpr int kAhead = 2048;  // bytes that are asked for before they are read

// Dot products of a row of weights with some inputs.
template <typename Format, int kInputs>
struct RowSums {
  static constexpr int kGroup = Format::kGroup;

  RowSums(int64_t columns, const void* const* inputs) {
    const Packed layout(columns, kGroup);
    groups = layout.groups;
    for (int p = 0; p < kInputs; ++p) {
      codes[p] = static_cast<const int8_t*>(inputs[p]);
      scales[p] = reinterpret_cast<const float*>(codes[p] + layout.codes);
      sum[p][0] = sum[p][1] = rest[p] = _mm512_setzero_ps();
    }
  }

  // `kFull`: the step is whole, which the compiler then knows.
  template <bool kFull>
  [[gnu::always_inline]] void Step(const uint8_t* at, int64_t column, int columns) {
    constexpr int kCount = 16 * kGroup / 64;
    const StepScales all = Format::ReadScales(at, kFull ? 16 : columns / kGroup);
    __m512 scale[kInputs];
    for (int p = 0; p < kInputs; ++p) {
      const float* of_input = scales[p] + column / kGroup;
      scale[p] = _mm512_mul_ps(all.scale, _mm512_loadu_ps(of_input));
      rest[p] = _mm512_fmadd_ps(all.offset, _mm512_loadu_ps(of_input + groups), rest[p]);
    }
    if constexpr (kFull) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) Add(at, column, i, scale);
    } else {
      for (int i = 0; i < columns / 64; ++i) Add(at, column, i, scale);
    }
  }
  [[gnu::always_inline]] void Add(const uint8_t* at, int64_t column, int i,
                                  const __m512 (&scale)[kInputs]) {
    const __m512i weights = Format::Codes(at, i), lanes = LanesOf<kGroup>(i);
    for (int p = 0; p < kInputs; ++p) {
      const __m512i products = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights,
                                                   _mm512_loadu_si512(codes[p] + column + 64 * i));
      sum[p][i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products),
                                      _mm512_permutexvar_ps(lanes, scale[p]), sum[p][i % 2]);
    }
  }

  int64_t groups;
  const int8_t* codes[kInputs];
  const float* scales[kInputs];
  __m512 sum[kInputs][2], rest[kInputs];
};

template <typename Format, int kInputs>
void MultiplyRows(const RowBlock& rows, const void* const* inputs, float* out, int64_t stride) {
  constexpr int kColumns = 16 * Format::kGroup;
  const auto* row = static_cast<const uint8_t*>(rows.first);
  for (int64_t r = 0; r < rows.rows; ++r, row += rows.bytes) {
    RowSums<Format, kInputs> sums(rows.columns, inputs);
    const uint8_t* at = row;
    int64_t column = 0;
    for (; column + kColumns <= rows.columns; column += kColumns, at += Format::kStepBytes) {
      for (int b = 0; b < Format::kStepBytes; b += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(at) + kAhead + b, _MM_HINT_T0);
      }
      sums.template Step<true>(at, column, kColumns);
    }
    if (const auto left = static_cast<int>(rows.columns - column); left > 0) {
      sums.template Step<false>(at, column, left);
    }
    for (int p = 0; p < kInputs; ++p) {
      const __m512 both = _mm512_add_ps(sums.sum[p][0], sums.sum[p][1]);
      out[p * stride + r] = _mm512_reduce_add_ps(_mm512_add_ps(both, sums.rest[p]));
    }
  }
}

template <typename Format>
void Multiply(const RowBlock& rows, const void* const* inputs, int count, float* out,
              int64_t stride) {
  switch (count) {
    case 1:
      return MultiplyRows<Format, 1>(rows, inputs, out, stride);
    case 2:
      return MultiplyRows<Format, 2>(rows, inputs, out, stride);
    case 3:
      return MultiplyRows<Format, 3>(rows, inputs, out, stride);
    default:
      return MultiplyRows<Format, 4>(rows, inputs, out, stride);
  }
}

template <typename Format>
const RowProduct* Of() {
  static constexpr RowProduct kProduct = {PackedBytes<Format::kGroup>, Pack<Format::kGroup>,
                                          Multiply<Format>};
  return &kProduct;
}

const RowProduct* OfType(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0:
      return Of<Q4_0>();
    case GGML_TYPE_Q4_1:
      return Of<Q4_1>();
    case GGML_TYPE_Q5_0:
      return Of<Q5_0>();
    case GGML_TYPE_Q5_1:
      return Of<Q5_1>();
    case GGML_TYPE_Q8_0:
      return Of<Q8_0>();
    case GGML_TYPE_IQ4_NL:
      return Of<Iq4Nl>();
    case GGML_TYPE_MXFP4:
      return Of<MxFp4>();
    case GGML_TYPE_Q4_K:
      return Of<Q4K>();
    case GGML_TYPE_Q5_K:
      return Of<Q5K>();
    case GGML_TYPE_IQ4_XS:
      return Of<Iq4Xs>();
    case GGML_TYPE_Q6_K:
      return Of<Q6K>();
    case GGML_TYPE_Q3_K:
      return Of<Q3K>();
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace rows

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const RowProduct* RowProduct::Find(ggml_type type, int64_t columns) {
  static const bool known =
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return known && columns % 64 == 0 ? rows::OfType(type) : nullptr;
}

}  // namespace moert_ggml

#else  // other processors

namespace moert_ggml {

const RowProduct* RowProduct::Find(ggml_type /*type*/, int64_t /*columns*/) { return nullptr; }

}  // namespace moert_ggml

#endif
