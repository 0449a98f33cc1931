// Products of a few input rows with a row of weights as GGUF files store it, by AVX-512 VNNI.
// ggml's own product takes one input, and decodes the row again for the next.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_ROW_PRODUCT_H_
#define MOERT_EXAMPLES_GGML_BACKEND_ROW_PRODUCT_H_

#include <ggml.h>

#include <cstddef>
#include <cstdint>

namespace moert_ggml {

/// Rows of weights; the rows lie `bytes` apart.
struct RowBlock {
  const void* first = nullptr;
  size_t bytes = 0;
  int64_t rows = 0, columns = 0;
};

/// The functions of one format. Inputs are packed to codes of 8 bits with a scale every 32 columns,
/// as ggml's CUDA kernels pack them. Thread-safe.
struct RowProduct {
  static constexpr int kMostInputs = 4;

  /// Null: there is none for this format, number of columns or processor; use ggml's own product.
  static const RowProduct* Find(ggml_type type, int64_t columns);

  size_t (*packed_bytes)(int64_t columns);
  void (*pack)(const float* row, void* packed, int64_t columns);
  /// out[i * stride + r] = product of row r with inputs[i], r < rows, i < count <= kMostInputs.
  void (*multiply)(const RowBlock& rows, const void* const* inputs, int count, float* out,
                   int64_t stride);
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_ROW_PRODUCT_H_
