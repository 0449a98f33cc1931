// Products by the vectors of every instruction set that this processor has, and the factorization
// that is made of them, against sums in plain loops.
#include "offline/dense_lanes.h"

#include <cmath>
#include <random>
#include <vector>

#include "offline/gptq.h"
#include "support/catch.h"

namespace moert {
namespace {

template <class T>
std::vector<T> Normal(int64_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& v : values) v = static_cast<T>(normal(rng));
  return values;
}

struct Shape {
  int64_t rows, columns, depth;
};
// Parts of a block at every edge, and less than one.
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 5, 2}, {6, 64, 7}, {13, 130, 33}, {130, 67, 128}};

/// Both ways that matrices lie: b's rows one behind the other, and its columns.
template <class T, class C, class Multiply>
void Check(const Multiply& multiply, bool lower, double tolerance) {
  for (const Shape& s : kShapes) {
    for (const bool transposed : {false, true}) {
      const std::vector<T> a = Normal<T>(s.rows * s.depth, 1),
                           b = Normal<T>(s.columns * s.depth, 2);
      const int64_t stride = s.columns + 3;
      std::vector<C> c(static_cast<size_t>(s.rows * stride), C{1});
      std::vector<T> scratch(static_cast<size_t>(DenseScratch(s.rows, s.depth)), NAN);
      const StridedMatrix<T> left = {a.data(), transposed ? 1 : s.depth, transposed ? s.rows : 1};
      const StridedMatrix<T> right = {b.data(), transposed ? 1 : s.columns,
                                      transposed ? s.depth : 1};
      multiply({left, right, s.rows, s.columns, s.depth, -1, lower, c.data(), stride},
               scratch.data());
      INFO(s.rows << " x " << s.columns << " x " << s.depth << (transposed ? ", transposed" : ""));
      for (int64_t i = 0; i < s.rows; ++i) {
        for (int64_t j = 0; j < stride; ++j) {
          if (lower && j > i && j < s.columns) continue;
          double sum = 1;
          for (int64_t p = 0; p < s.depth && j < s.columns; ++p) {
            sum -= double{left.data[i * left.row + p * left.column]} *
                   double{right.data[p * right.row + j * right.column]};
          }
          REQUIRE(std::abs(c[i * stride + j] - sum) <= tolerance * static_cast<double>(s.depth));
        }
      }
    }
  }
}

TEST_CASE("products of every instruction set") {
  for (const DenseLanes* const* set = DenseLaneSets(); *set != nullptr; ++set) {
    INFO((*set)->name);
    for (const bool lower : {false, true}) {
      Check<float, double>((*set)->moments, lower, 1e-6);
      Check<float, float>((*set)->floats, lower, 1e-6);
      Check<double, double>((*set)->doubles, lower, 1e-14);
    }
    const std::vector<float> errors = Normal<float>(kDenseRows, 3), shares = Normal<float>(9, 4);
    std::vector<float> block(10 * kDenseRows, 2);
    (*set)->spread(errors.data(), shares.data(), 9, block.data());
    for (size_t j = 0; j < 10; ++j) {
      for (size_t i = 0; i < kDenseRows; ++i) {
        const double right = 2 + (j < 9 ? double{errors[i]} * shares[j] : 0);
        REQUIRE(block[j * kDenseRows + i] == Approx(right).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("a factor's square is the matrix; what is not positive definite has none") {
  for (const DenseLanes* const* set = DenseLaneSets(); *set != nullptr; ++set) {
    for (const int64_t k : {1, 2, 40, 128, 129, 300}) {
      INFO((*set)->name << ", " << k);
      const std::vector<double> x = Normal<double>(k * 2 * k, 7);
      std::vector<double> h(static_cast<size_t>(k * k), NAN);
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          h[i * k + j] = i == j ? 0.1 : 0;
          for (int64_t t = 0; t < 2 * k; ++t) h[i * k + j] += x[i * 2 * k + t] * x[j * 2 * k + t];
        }
      }
      std::vector<double> factor = h;
      REQUIRE(FactorCholesky(k, factor.data(), **set));
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          double sum = 0;
          for (int64_t p = 0; p <= j; ++p) sum += factor[i * k + p] * factor[j * k + p];
          REQUIRE(sum == Approx(h[i * k + j]).epsilon(1e-9).margin(1e-9));
        }
      }
      h[(k - 1) * k + k - 1] = -1;
      CHECK_FALSE(FactorCholesky(k, h.data(), **set));
    }
  }
}

}  // namespace
}  // namespace moert
