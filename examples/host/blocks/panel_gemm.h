// The host's one matrix product: Y = X W^T with W stored as panels of 16 output channels.
//
// A panel holds [k][16]: for each input channel the weights of 16 neighbouring output channels.
// Every element of Y is one chain of fused multiply-adds over k in ascending order, starting from
// its bias (or 0), so its bits depend on its row of X and its column of W alone: not on the number
// of rows, the thread count, or the vector width. Batches and prefill windows of any size agree to
// the bit.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_PANEL_GEMM_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_PANEL_GEMM_H_

#include <cstdint>

namespace moert::host {

inline constexpr int64_t kPanelWidth = 16;

/// One product over whole panels. Plain data: the kernels are compiled for other instruction sets.
struct PanelGemm {
  const float* x;  // [rows, k], x_stride floats apart
  int64_t x_stride;
  int64_t rows;
  int64_t k;
  const void* panels;    // fp32 or bf16 bits
  int64_t panel_stride;  // elements from one panel to the next
  int64_t num_panels;
  const float* bias;  // [num_panels * 16] or null
  float* y;           // [rows, num_panels * 16], y_stride floats apart
  int64_t y_stride;
};

struct PanelKernels {
  const char* name;
  void (*f32)(const PanelGemm&);
  void (*bf16)(const PanelGemm&);
};

/// The best kernel set that this CPU runs; chosen once.
const PanelKernels& Panel();

// Null if the build or the CPU lacks the instructions.
const PanelKernels* PanelKernelsAvx512();
const PanelKernels* PanelKernelsAvx2();
/// Same bits as the others if the compiler contracts to fused multiply-adds; otherwise equal within
/// rounding.
const PanelKernels* PanelKernelsPortable();

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_PANEL_GEMM_H_
