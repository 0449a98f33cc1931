#include "offline/cholesky.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moert {
namespace {

constexpr int64_t kBlock = 128;

/// A block on the diagonal, n x n in rows of `stride`. Loops run along rows and become vectors.
bool FactorDiagonal(int64_t n, int64_t stride, double* a) {
  double column[kBlock];
  for (int64_t p = 0; p < n; ++p) {
    const double pivot = a[p * stride + p];
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    const double root = std::sqrt(pivot);
    a[p * stride + p] = root;
    for (int64_t i = p + 1; i < n; ++i) {
      double* const row = a + i * stride;
      column[i] = row[p] /= root;
      for (int64_t j = p + 1; j <= i; ++j) row[j] -= column[i] * column[j];
    }
  }
  return true;
}

/// The inverse of a lower triangular block, dense: [n, n].
void Invert(int64_t n, int64_t stride, const double* a, double* inverse) {
  std::fill_n(inverse, n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    double* const row = inverse + i * n;
    row[i] = 1;
    for (int64_t p = 0; p < i; ++p) {
      const double factor = a[i * stride + p];
      const double* const other = inverse + p * n;
      for (int64_t j = 0; j <= p; ++j) row[j] -= factor * other[j];
    }
    for (int64_t j = 0; j <= i; ++j) row[j] /= a[i * stride + i];
  }
}

}  // namespace

bool FactorCholesky(int64_t k, double* a, const DenseLanes& lanes) {
  std::vector<double> inverse(kBlock * kBlock), panel(static_cast<size_t>(k * kBlock));
  std::vector<double> scratch(DenseScratch(k, kBlock));
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t n = std::min(kBlock, k - begin), end = begin + n, rest = k - end;
    double* const diagonal = a + begin * k + begin;
    if (!FactorDiagonal(n, k, diagonal)) return false;
    if (rest == 0) break;
    // The rows below times the inverse's transpose, then what they explain of the rest.
    Invert(n, k, diagonal, inverse.data());
    double* const below = a + end * k + begin;
    std::fill_n(panel.begin(), rest * n, 0.0);
    lanes.doubles({{below, k, 1}, {inverse.data(), 1, n}, rest, n, n, 1, false, panel.data(), n},
                  scratch.data());
    for (int64_t i = 0; i < rest; ++i) std::copy_n(panel.data() + i * n, n, below + i * k);
    lanes.doubles(
        {{panel.data(), n, 1}, {panel.data(), 1, n}, rest, rest, n, -1, true, a + end * k + end, k},
        scratch.data());
  }
  return true;
}

}  // namespace moert
