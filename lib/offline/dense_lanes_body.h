// The functions of DenseLanes over vectors of kBytes. Only for files compiled for an instruction
// set: everything here is local to such a file.
#ifndef MOERT_LIB_OFFLINE_DENSE_LANES_BODY_H_
#define MOERT_LIB_OFFLINE_DENSE_LANES_BODY_H_

#include "offline/dense_lanes.h"

namespace moert {
namespace {

// A block of the result in registers: kRows x (kVectors of kBytes).
template <class T, int kBytes, int kRows, int kVectors>
struct DenseBlock {
  typedef T Vector __attribute__((vector_size(kBytes)));
  typedef T Loose __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));
  static constexpr int kColumns = kVectors * kLanes;
  static_assert(kRows - 1 + kColumns <= 128, "DenseScratch");

  // a: [depth][kRows], b: [depth][kColumns].
  static void Multiply(const T* a, const T* b, int64_t depth, T* out) {
    Vector sums[kRows][kVectors] = {};
    for (int64_t p = 0; p < depth; ++p, a += kRows, b += kColumns) {
      Vector right[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) right[v] = *reinterpret_cast<const Loose*>(b + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] += a[r] * right[v];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        *reinterpret_cast<Loose*>(out + r * kColumns + v * kLanes) = sums[r][v];
      }
    }
  }

  // to: [depth][kCount]; what is outside of the matrix is 0.
  template <int kCount>
  static void Copy(const T* from, int64_t step, int64_t along, int64_t count, int64_t depth,
                   T factor, T* to) {
    for (int64_t p = 0; p < depth; ++p, to += kCount) {
      const T* const at = from + p * along;
      if (step == 1 && count >= kCount) {
        for (int i = 0; i < kCount; ++i) to[i] = factor * at[i];
      } else {
        for (int i = 0; i < kCount; ++i) to[i] = i < count ? factor * at[i * step] : T{0};
      }
    }
  }

  template <class C>
  static void Run(const DenseProduct<T, C>& m, T* scratch) {
    T* const right = scratch;
    T* const left = right + m.depth * kColumns;  // all rows, kRows at a time
    for (int64_t i = 0; i < m.rows; i += kRows) {
      Copy<kRows>(m.a.data + i * m.a.row, m.a.row, m.a.column, m.rows - i, m.depth, m.sign,
                  left + i * m.depth);
    }
    T out[kRows * kColumns];
    for (int64_t j = 0; j < m.columns; j += kColumns) {
      const int64_t width = m.columns - j < kColumns ? m.columns - j : kColumns;
      Copy<kColumns>(m.b.data + j * m.b.column, m.b.column, m.b.row, width, m.depth, 1, right);
      const int64_t first = m.lower ? j / kRows * kRows : 0;
      for (int64_t i = first; i < m.rows; i += kRows) {
        const int64_t height = m.rows - i < kRows ? m.rows - i : kRows;
        Multiply(left + i * m.depth, right, m.depth, out);
        for (int64_t r = 0; r < height; ++r) {
          C* const to = m.c + (i + r) * m.stride + j;
          for (int64_t c = 0; c < width; ++c) to[c] += static_cast<C>(out[r * kColumns + c]);
        }
      }
    }
  }
};

template <int kBytes>
void Spread(const float* errors, const float* shares, int64_t count, float* block) {
  using Block = DenseBlock<float, kBytes, 1, 1>;
  constexpr int kVectors = kDenseRows / Block::kLanes;
  typename Block::Vector error[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    error[v] = *reinterpret_cast<const typename Block::Loose*>(errors + v * Block::kLanes);
  }
  for (int64_t j = 0; j < count; ++j, block += kDenseRows) {
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<typename Block::Loose*>(block + v * Block::kLanes) += error[v] * shares[j];
    }
  }
}

template <int kBytes, int kRows, int kVectors>
constexpr DenseLanes DenseLanesOf(const char* name) {
  return {name, DenseBlock<float, kBytes, kRows, kVectors>::template Run<double>,
          DenseBlock<float, kBytes, kRows, kVectors>::template Run<float>,
          DenseBlock<double, kBytes, kRows, kVectors>::template Run<double>, Spread<kBytes>};
}

}  // namespace
}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_DENSE_LANES_BODY_H_
