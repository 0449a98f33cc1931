#include "host/blocks/panel_gemm.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace moert::host {
namespace {

inline __m256 Load(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 Load(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// R rows times P panels (2 P vectors), all accumulators in registers.
template <int R, int P, typename W>
void Tile(const PanelGemm& g, int64_t row, int64_t panel) {
  const W* w = static_cast<const W*>(g.panels) + panel * g.panel_stride;
  const float* x = g.x + row * g.x_stride;
  __m256 acc[R][2 * P];
#pragma GCC unroll 16
  for (int v = 0; v < 2 * P; ++v) {
    const __m256 start = g.bias ? Load(g.bias + panel * kPanelWidth + v * 8) : _mm256_setzero_ps();
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r][v] = start;
  }
  for (int64_t k = 0; k < g.k; ++k) {
    __m256 b[2 * P];
#pragma GCC unroll 16
    for (int v = 0; v < 2 * P; ++v) {
      b[v] = Load(w + (v / 2) * g.panel_stride + k * kPanelWidth + (v % 2) * 8);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m256 a = _mm256_broadcast_ss(x + r * g.x_stride + k);
#pragma GCC unroll 16
      for (int v = 0; v < 2 * P; ++v) acc[r][v] = _mm256_fmadd_ps(a, b[v], acc[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < 2 * P; ++v) {
      _mm256_storeu_ps(g.y + (row + r) * g.y_stride + panel * kPanelWidth + v * 8, acc[r][v]);
    }
  }
}

template <typename W>
void Run(const PanelGemm& g) {
  int64_t panel = 0;
  if (g.rows < 4) {  // few rows: more panels keep enough independent chains in flight
    for (; panel + 4 <= g.num_panels; panel += 4) {
      for (int64_t row = 0; row < g.rows; ++row) Tile<1, 4, W>(g, row, panel);
    }
  }
  for (; panel < g.num_panels; ++panel) {
    int64_t row = 0;
    for (; row + 4 <= g.rows; row += 4) Tile<4, 1, W>(g, row, panel);
    for (; row < g.rows; ++row) Tile<1, 1, W>(g, row, panel);
  }
}

const PanelKernels kKernels = {"avx2", Run<float>, Run<uint16_t>};

}  // namespace

const PanelKernels* PanelKernelsAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kKernels : nullptr;
}

}  // namespace moert::host
#else
namespace moert::host {
const PanelKernels* PanelKernelsAvx2() { return nullptr; }
}  // namespace moert::host
#endif
