#include "offline/gptq.h"

#include <fmt/format.h>

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace moert {
namespace {

using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Tokens whose products are summed in single precision before they go to the double sums.
constexpr int64_t kChunk = 256;

/// The factor of H + damping * mean(diag H) * I, or none. H = M M^T with M upper triangular is the
/// Cholesky factorization of H with rows and columns reversed; U = M^-1.
bool Factor(const MatrixD& h, double damping, GptqFactor* factor) {
  const Eigen::Index k = h.rows();
  MatrixD reversed(k, k);
  const double added = damping * h.diagonal().mean();
  for (Eigen::Index i = 0; i < k; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      // Only the lower triangle of either is meaningful: element (k-1-j, k-1-i) of h is in it.
      reversed(i, j) = h(k - 1 - j, k - 1 - i);
    }
    reversed(i, i) += added;
  }
  const Eigen::LLT<Eigen::Ref<MatrixD>, Eigen::Lower> llt(reversed);
  if (llt.info() != Eigen::Success) return false;
  MatrixD inverse = MatrixD::Identity(k, k);
  llt.matrixL().solveInPlace(inverse);
  factor->upper.assign(static_cast<size_t>(k * k), 0.0f);
  for (Eigen::Index i = 0; i < k; ++i) {
    for (Eigen::Index j = i; j < k; ++j) {
      const double value = inverse(k - 1 - i, k - 1 - j);
      if (!std::isfinite(value)) return false;
      factor->upper[static_cast<size_t>(i * k + j)] = static_cast<float>(value);
    }
    if (!(factor->upper[static_cast<size_t>(i * k + i)] > 0)) return false;
  }
  factor->damping = damping;
  return true;
}

float Restore(const Scheme& scheme, const QuantizedMatrix& q, int64_t row, int64_t column) {
  const int64_t at = row * q.k + column;
  const int64_t group = row * q.groups() + column / q.group;
  return RestoreCode(scheme, {q.scales[group], q.offsets.empty() ? 0.0f : q.offsets[group]},
                     q.codes[at]);
}

class Rounding {
 public:
  Rounding(const MatrixLayout& layout, absl::Span<const float> weights, const GptqFactor& factor,
           const GptqOptions& options)
      : scheme_(layout.scheme),
        options_(options),
        w_(Eigen::Map<const MatrixF>(weights.data(), layout.rows, layout.k)),
        u_(factor.upper.data(), layout.k, layout.k),
        q_(MakeQuantizedMatrix(layout)) {}

  QuantizedMatrix Run() {
    // A group that reaches beyond a block would be fitted to weights that are not up to date;
    // per-channel scales are fitted to the original weights.
    const bool whole_rows = q_.group >= q_.k;
    if (whole_rows) FitGroups(0);
    const int64_t block =
        whole_rows ? options_.block : std::max(q_.group, options_.block / q_.group * q_.group);
    for (int64_t begin = 0; begin < q_.k; begin += block) {
      RoundBlock(begin, std::min(q_.k, begin + block), whole_rows);
    }
    return std::move(q_);
  }

 private:
  void FitGroups(int64_t column) {
    const int64_t count = std::min(q_.group, q_.k - column);
    for (int64_t r = 0; r < q_.rows; ++r) {
      const GroupScale g = FitGroup(
          scheme_, absl::MakeConstSpan(w_.data() + r * q_.k + column, static_cast<size_t>(count)),
          options_.clip);
      const int64_t at = r * q_.groups() + column / q_.group;
      q_.scales[at] = g.scale;
      if (!q_.offsets.empty()) q_.offsets[at] = g.offset;
    }
  }

  void RoundBlock(int64_t begin, int64_t end, bool whole_rows) {
    MatrixF errors(q_.rows, end - begin);
    for (int64_t c = begin; c < end; ++c) {
      if (!whole_rows && c % q_.group == 0) FitGroups(c);
      const float inverse = 1.0f / u_(c, c);
      for (int64_t r = 0; r < q_.rows; ++r) {
        const int64_t group = r * q_.groups() + c / q_.group;
        const GroupScale g{q_.scales[group], q_.offsets.empty() ? 0.0f : q_.offsets[group]};
        q_.codes[r * q_.k + c] = RoundToCode(scheme_, g, w_(r, c));
        const float error = (w_(r, c) - Restore(scheme_, q_, r, c)) * inverse;
        errors(r, c - begin) = error;
        float* row = &w_(r, 0);
        const float* u = u_.data() + c * q_.k;
        for (int64_t j = c + 1; j < end; ++j) row[j] -= error * u[j];
      }
    }
    const int64_t rest = q_.k - end;
    if (rest > 0) {
      w_.rightCols(rest).noalias() -= errors * u_.block(begin, end, end - begin, rest);
    }
  }

  const Scheme& scheme_;
  const GptqOptions& options_;
  MatrixF w_;  // weights not yet rounded, with the errors of the others spread over them
  const Eigen::Map<const MatrixF> u_;
  QuantizedMatrix q_;
};

}  // namespace

InputMoments::InputMoments(int64_t k) : k_(k), lower_(static_cast<size_t>(k * k), 0.0) {}

absl::Status InputMoments::Add(absl::Span<const float> x, absl::Span<const float> weights) {
  const int64_t rows = static_cast<int64_t>(x.size()) / k_;
  for (const float v : x) {
    if (!std::isfinite(v)) return absl::InvalidArgumentError("an input is not finite");
  }
  Eigen::Map<MatrixD> sums(lower_.data(), k_, k_);
  MatrixF scaled, products(k_, k_);
  for (int64_t begin = 0; begin < rows; begin += kChunk) {
    const int64_t count = std::min(kChunk, rows - begin);
    scaled = Eigen::Map<const MatrixF>(x.data() + begin * k_, count, k_);
    if (!weights.empty()) {
      for (int64_t r = 0; r < count; ++r) scaled.row(r) *= weights[begin + r];
    }
    products.setZero();
    products.selfadjointView<Eigen::Lower>().rankUpdate(scaled.transpose());
    for (int64_t i = 0; i < k_; ++i) {
      sums.row(i).head(i + 1) += products.row(i).head(i + 1).cast<double>();
    }
  }
  tokens_ += rows;
  return absl::OkStatus();
}

absl::StatusOr<GptqFactor> FactorMoments(const InputMoments& moments, const GptqOptions& options) {
  if (moments.tokens() == 0) return absl::FailedPreconditionError("no tokens were seen");
  MatrixD h = Eigen::Map<const MatrixD>(moments.lower().data(), moments.k(), moments.k());
  GptqFactor factor;
  factor.k = moments.k();
  double mean = 0;
  for (int64_t i = 0; i < factor.k; ++i) {
    mean += h(i, i) / static_cast<double>(factor.k);
    factor.dead_columns += h(i, i) == 0 ? 1 : 0;
  }
  if (!(mean > 0)) return absl::FailedPreconditionError("all inputs were zero");
  // A dead column has no part in anybody's error; any positive value makes H regular there.
  for (int64_t i = 0; i < factor.k; ++i) {
    if (h(i, i) == 0) h(i, i) = mean;
  }
  double damping = options.damping;
  for (int i = 0; i < options.damping_attempts; ++i, damping *= 10) {
    if (Factor(h, damping, &factor)) return factor;
  }
  return absl::FailedPreconditionError(fmt::format(
      "the second moments of {} tokens cannot be factored, not even with a damping of {}",
      moments.tokens(), damping / 10));
}

absl::StatusOr<QuantizedMatrix> QuantizeGptq(const MatrixLayout& layout,
                                             absl::Span<const float> weights,
                                             const GptqFactor& factor, const GptqOptions& options) {
  if (factor.k != layout.k) {
    return absl::InvalidArgumentError(
        fmt::format("a matrix with {} inputs was given the moments of {}", layout.k, factor.k));
  }
  for (const float v : weights) {
    if (!std::isfinite(v)) return absl::InvalidArgumentError("a weight is not finite");
  }
  QuantizedMatrix q = Rounding(layout, weights, factor, options).Run();
  for (size_t i = 0; i < q.scales.size(); ++i) {
    if (!std::isfinite(q.scales[i]) || (!q.offsets.empty() && !std::isfinite(q.offsets[i]))) {
      return absl::FailedPreconditionError("a scale is not finite");
    }
  }
  return q;
}

}  // namespace moert
