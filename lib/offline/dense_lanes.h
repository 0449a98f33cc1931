// Products of dense matrices for GPTQ by vector instructions: a table of functions per instruction
// set. Files compiled for an instruction set include no shared inline code.
#ifndef MOERT_LIB_OFFLINE_DENSE_LANES_H_
#define MOERT_LIB_OFFLINE_DENSE_LANES_H_

#include <cstdint>

namespace moert {

/// a(i, p) = data[i * row + p * column].
template <class T>
struct StridedMatrix {
  const T* data;
  int64_t row, column;
};

/// c[i * stride + j] += sign * sum over p of a(i, p) b(p, j), for i < rows and j < columns. lower:
/// elements with j > i may or may not be updated. All sums over p are in T before they are added.
template <class T, class C>
struct DenseProduct {
  StridedMatrix<T> a, b;
  int64_t rows, columns, depth;
  T sign;
  bool lower;
  C* c;
  int64_t stride;
};

constexpr int kDenseRows = 16;

struct DenseLanes {
  const char* name;
  void (*moments)(const DenseProduct<float, double>& product, float* scratch);
  void (*floats)(const DenseProduct<float, float>& product, float* scratch);
  void (*doubles)(const DenseProduct<double, double>& product, double* scratch);
  /// block[j][i] += errors[i] * shares[j], for j < count and i < kDenseRows.
  void (*spread)(const float* errors, const float* shares, int64_t count, float* block);
};

/// Elements of scratch memory that a product needs.
constexpr int64_t DenseScratch(int64_t rows, int64_t depth) { return depth * (rows + 128); }

/// The tables that this processor can run, best first, then null. Results differ in their last
/// bits.
const DenseLanes* const* DenseLaneSets();

// Null if the compiler has no such instructions.
extern const DenseLanes* const kDenseLanesAvx512;
extern const DenseLanes* const kDenseLanesAvx2;
extern const DenseLanes kDenseLanesPlain;

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_DENSE_LANES_H_
