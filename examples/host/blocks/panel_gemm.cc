#include "host/blocks/panel_gemm.h"

#include <cstring>

namespace moert::host {
namespace {

inline float Widen(float w) { return w; }
inline float Widen(uint16_t w) {
  const uint32_t bits = static_cast<uint32_t>(w) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

template <typename W>
void Run(const PanelGemm& g) {
  for (int64_t panel = 0; panel < g.num_panels; ++panel) {
    const W* w = static_cast<const W*>(g.panels) + panel * g.panel_stride;
    for (int64_t row = 0; row < g.rows; ++row) {
      const float* x = g.x + row * g.x_stride;
      float acc[kPanelWidth];
      for (int64_t i = 0; i < kPanelWidth; ++i) {
        acc[i] = g.bias ? g.bias[panel * kPanelWidth + i] : 0.0f;
      }
      for (int64_t k = 0; k < g.k; ++k) {
        for (int64_t i = 0; i < kPanelWidth; ++i) acc[i] += x[k] * Widen(w[k * kPanelWidth + i]);
      }
      std::memcpy(g.y + row * g.y_stride + panel * kPanelWidth, acc, sizeof(acc));
    }
  }
}

const PanelKernels kPortable = {"portable", Run<float>, Run<uint16_t>};

}  // namespace

const PanelKernels* PanelKernelsPortable() { return &kPortable; }

const PanelKernels& Panel() {
  static const PanelKernels& best = []() -> const PanelKernels& {
    if (const PanelKernels* k = PanelKernelsAvx512()) return *k;
    if (const PanelKernels* k = PanelKernelsAvx2()) return *k;
    return *PanelKernelsPortable();
  }();
  return best;
}

}  // namespace moert::host
