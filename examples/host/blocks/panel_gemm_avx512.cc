#include "host/blocks/panel_gemm.h"

#if defined(__AVX512F__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for mistakes
// (PR105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace moert::host {
namespace {

inline __m512 Load(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 Load(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// R rows times P panels, all accumulators in registers.
template <int R, int P, typename W>
void Tile(const PanelGemm& g, int64_t row, int64_t panel) {
  const W* w = static_cast<const W*>(g.panels) + panel * g.panel_stride;
  const float* x = g.x + row * g.x_stride;
  __m512 acc[R][P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
    const __m512 start = g.bias ? Load(g.bias + (panel + p) * kPanelWidth) : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r][p] = start;
  }
  for (int64_t k = 0; k < g.k; ++k) {
    __m512 b[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) b[p] = Load(w + p * g.panel_stride + k * kPanelWidth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(x[r * g.x_stride + k]);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) acc[r][p] = _mm512_fmadd_ps(a, b[p], acc[r][p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      _mm512_storeu_ps(g.y + (row + r) * g.y_stride + (panel + p) * kPanelWidth, acc[r][p]);
    }
  }
}

template <int P, typename W>
void Rows(const PanelGemm& g, int64_t panel) {
  int64_t row = 0;
  for (; row + 8 <= g.rows; row += 8) Tile<8, P, W>(g, row, panel);
  if (row + 4 <= g.rows) Tile<4, P, W>(g, row, panel), row += 4;
  for (; row < g.rows; ++row) Tile<1, P, W>(g, row, panel);
}

template <typename W>
void Run(const PanelGemm& g) {
  int64_t panel = 0;
  if (g.rows < 4) {  // few rows: many panels keep enough independent chains in flight
    for (; panel + 8 <= g.num_panels; panel += 8) {
      for (int64_t row = 0; row < g.rows; ++row) Tile<1, 8, W>(g, row, panel);
    }
  }
  for (; panel + 2 <= g.num_panels; panel += 2) Rows<2, W>(g, panel);
  if (panel < g.num_panels) Rows<1, W>(g, panel);
}

const PanelKernels kKernels = {"avx512", Run<float>, Run<uint16_t>};

}  // namespace

const PanelKernels* PanelKernelsAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
             ? &kKernels
             : nullptr;
}

}  // namespace moert::host
#else
namespace moert::host {
const PanelKernels* PanelKernelsAvx512() { return nullptr; }
}  // namespace moert::host
#endif
