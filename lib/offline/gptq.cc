#include "offline/gptq.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "offline/offline_device.h"

namespace moert {
namespace {

constexpr int64_t kBlock = 128;

/// Factors a block on the diagonal, n x n in rows of `stride`. Loops run along rows, so that they
/// are vectorized.
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
    // Multiplies the rows below by the inverse's transpose, then subtracts their part from the
    // rest.
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

namespace {

/// Tokens whose products are summed in single precision before they go to the double sums.
constexpr int64_t kChunk = 256;

const DenseLanes& BestDenseLanes() { return *DenseLaneSets()[0]; }

/// Reverses the rows and columns of the lower triangle, tile by tile: rows become columns.
void Reverse(int64_t k, const double* lower, double* reversed) {
  constexpr int64_t kTile = 32;
  for (int64_t row = 0; row < k; row += kTile) {
    for (int64_t column = 0; column <= row; column += kTile) {
      for (int64_t i = row; i < std::min(k, row + kTile); ++i) {
        for (int64_t j = column; j < std::min(i + 1, column + kTile); ++j) {
          reversed[i * k + j] = lower[(k - 1 - j) * k + k - 1 - i];
        }
      }
    }
  }
}

/// The factor of H with damping * mean(diagonal) added to its diagonal, or none. H = M M^T with M
/// upper triangular is the Cholesky factorization of H with rows and columns reversed. lower: of H,
/// whose diagonal is taken from `diagonal`. reversed: memory for k^2.
bool Factor(const std::vector<double>& lower, const std::vector<double>& diagonal, double damping,
            double* reversed, GptqFactor* factor) {
  const int64_t k = factor->k;
  double mean = 0;
  for (const double d : diagonal) mean += d / static_cast<double>(k);
  Reverse(k, lower.data(), reversed);
  for (int64_t i = 0; i < k; ++i) reversed[i * k + i] = diagonal[k - 1 - i] + damping * mean;
  if (!FactorCholesky(k, reversed)) return false;
  factor->shares.assign(lower.size(), 0.0f);
  std::vector<double> divisors(diagonal.size());
  for (int64_t c = 0; c < k; ++c) divisors[c] = reversed[(k - 1 - c) * k + k - 1 - c];
  for (int64_t j = 0; j < k; ++j) {
    const double* const from = reversed + (k - 1 - j) * k + k - 1;
    float* const to = factor->shares.data() + j * k;
    to[j] = static_cast<float>(divisors[j]);
    for (int64_t c = j + 1; c < k; ++c) {
      const double share = from[-c] / divisors[c];
      if (!std::isfinite(share)) return false;
      to[c] = static_cast<float>(share);
    }
  }
  factor->damping = damping;
  return true;
}

// Rows are rounded kRows at a time, side by side, so that the work is vectorized.
class Rounding {
 public:
  Rounding(const MatrixLayout& layout, absl::Span<const float> weights, const GptqFactor& factor,
           const GptqOptions& options)
      : layout_(layout),
        scheme_(layout.scheme),
        options_(options),
        weights_(weights),
        w_(weights.begin(), weights.end()),
        shares_(factor.shares.data()),
        q_(MakeQuantizedMatrix(layout)) {}

  QuantizedMatrix Run() {
    // A group that reaches beyond a block would be fitted to weights that are not up to date;
    // per-channel scales are fitted to the original weights.
    whole_rows_ = q_.group >= q_.k;
    if (whole_rows_) FitColumns(0, q_.k);
    const int64_t block = GptqBlock(layout_, options_);
    errors_.resize(q_.rows * block);
    std::vector<float> scratch(DenseScratch(q_.rows, block));
    for (int64_t begin = 0; begin < q_.k; begin += block) {
      const int64_t end = std::min(q_.k, begin + block), width = end - begin;
      fitted_ = whole_rows_ || block == q_.group;
      if (!whole_rows_ && fitted_) FitColumns(begin, end);
      for (int64_t r = 0; r < q_.rows; r += kRows) RoundBlock(r, begin, end);
      if (end == q_.k) break;
      BestDenseLanes().floats({{errors_.data(), width, 1},
                               {shares_ + begin * q_.k + end, q_.k, 1},
                               q_.rows,
                               q_.k - end,
                               width,
                               1,
                               false,
                               w_.data() + end,
                               q_.k},
                              scratch.data());
    }
    return std::move(q_);
  }

 private:
  static constexpr int64_t kRows = kDenseRows;
  using Lanes = float[kRows];

  /// Fits the scales of all rows' groups formed by these columns, from up-to-date weights.
  void FitColumns(int64_t begin, int64_t end) {
    const int64_t width = end - begin;
    std::vector<float> columns(q_.rows * width);
    for (int64_t r = 0; r < q_.rows; ++r) {
      std::copy_n(w_.data() + r * q_.k + begin, width, columns.data() + r * width);
    }
    for (int64_t r = 0; r < q_.rows; ++r) Fit(r, begin, columns.data() + r * width);
  }

  /// Fits the scale of a row's group that begins at `column`. values: its up-to-date weights.
  void Fit(int64_t row, int64_t column, const float* values) {
    const int64_t count = std::min(q_.group, q_.k - column);
    const GroupScale g = FitGroup(scheme_, absl::MakeConstSpan(values, count), options_.clip);
    const int64_t at = row * q_.groups() + column / q_.group;
    q_.scales[at] = g.scale;
    if (!q_.offsets.empty()) q_.offsets[at] = g.offset;
  }

  GroupScale GroupOf(int64_t row, int64_t column) const {
    const int64_t at = row * q_.groups() + column / q_.group;
    return {q_.scales[at], q_.offsets.empty() ? 0.0f : q_.offsets[at]};
  }

  void RoundBlock(int64_t row, int64_t begin, int64_t end) {
    const int64_t rows = std::min(kRows, q_.rows - row), width = end - begin;
    block_.assign((width + 1) * kRows, 0.0f);
    Lanes* const block = reinterpret_cast<Lanes*>(block_.data());
    for (int64_t r = 0; r < rows; ++r) {
      const float* const from = w_.data() + (row + r) * q_.k + begin;
      for (int64_t c = 0; c < width; ++c) block[c][r] = from[c];
    }
    for (int64_t c = 0; c < width; ++c) {
      if (c == 0 || (begin + c) % q_.group == 0) BeginGroups(row, rows, begin + c, block + c);
      float codes[kRows], back[kRows];
      RoundColumn(block[c], codes, back);
      Lanes error = {};
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (row + r) * q_.k + begin + c;
        q_.codes[at] = static_cast<uint8_t>(codes[r]);
        error[r] = weights_[at] - back[r];
        errors_[(row + r) * width + c] = error[r];
      }
      BestDenseLanes().spread(error, shares_ + (begin + c) * q_.k + begin + c + 1, width - c - 1,
                              block[c + 1]);
    }
  }

  /// Like RoundToCode and RestoreCode.
  void RoundColumn(const Lanes& weights, Lanes& codes, Lanes& back) const {
    if (!plain_) {
      for (int64_t r = 0; r < kRows; ++r) {
        const GroupScale group = {scales_[r], offsets_[r]};
        const uint8_t code = RoundToCode(scheme_, group, weights[r]);
        codes[r] = code;
        back[r] = RestoreCode(scheme_, group, code);
      }
      return;
    }
    const float top = static_cast<float>((1 << scheme_.weight_bits) - 1);
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: to nearest even
    for (int64_t r = 0; r < kRows; ++r) {
      float u = (weights[r] + before_[r]) / scales_[r] + zeros_[r];
      u = u > 0 ? u : 0;
      u = u < top ? u : top;
      codes[r] = (u + kMagic) - kMagic;
      back[r] = scales_[r] * (codes[r] - zeros_[r]) - before_[r];
    }
  }

  /// Sets up the scales of the groups that hold `column`. values: that column and the ones after
  /// it.
  void BeginGroups(int64_t row, int64_t rows, int64_t column, const Lanes* values) {
    const bool zeros = scheme_.symmetric || scheme_.zero_points;
    const float middle = static_cast<float>(1 << (scheme_.weight_bits - 1));
    plain_ = !scheme_.fp8 && !scheme_.fp4;
    std::fill_n(scales_, kRows, 1.0f);
    for (int64_t r = 0; r < rows; ++r) {
      if (!fitted_) {
        const int64_t count = std::min(q_.group, q_.k - column);
        group_.resize(count);
        for (int64_t i = 0; i < count; ++i) group_[i] = values[i][r];
        Fit(row + r, column, group_.data());
      }
      const GroupScale group = GroupOf(row + r, column);
      plain_ = plain_ && group.scale > 0;
      scales_[r] = group.scale;
      offsets_[r] = group.offset;
      zeros_[r] = scheme_.symmetric ? middle : zeros ? group.offset : 0;
      before_[r] = zeros ? 0 : group.offset;
    }
  }

  const MatrixLayout& layout_;
  const Scheme& scheme_;
  const GptqOptions& options_;
  const absl::Span<const float> weights_;
  std::vector<float> w_;  // not yet rounded, with the errors of the others spread over them
  const float* const shares_;
  QuantizedMatrix q_;
  bool whole_rows_ = false;
  bool fitted_ = false;        // the scales of the block's columns are there
  std::vector<float> errors_;  // of a block: [rows, its columns]
  std::vector<float> block_, group_;
  // Whether the groups of kRows rows are plain. Integers: a weight is scale * (code - zero) -
  // before.
  bool plain_ = false;
  Lanes scales_ = {}, offsets_ = {}, zeros_ = {}, before_ = {};
};

}  // namespace

InputMoments::InputMoments(int64_t k) : k_(k), lower_(static_cast<size_t>(k * k), 0.0) {}

InputMoments::InputMoments(int64_t k, int64_t tokens, std::vector<double> lower)
    : k_(k), tokens_(tokens), lower_(std::move(lower)) {}

absl::Status InputMoments::Add(absl::Span<const float> x, absl::Span<const float> weights) {
  const int64_t rows = static_cast<int64_t>(x.size()) / k_;
  for (const float v : x) {
    if (!std::isfinite(v)) return absl::InvalidArgumentError("an input is not finite");
  }
  std::vector<float> scaled(kChunk * k_);
  std::vector<float> scratch(DenseScratch(k_, kChunk));
  for (int64_t begin = 0; begin < rows; begin += kChunk) {
    const int64_t count = std::min(kChunk, rows - begin);
    for (int64_t r = 0; r < count; ++r) {
      const float weight = weights.empty() ? 1.0f : weights[begin + r];
      const float* const from = x.data() + (begin + r) * k_;
      for (int64_t i = 0; i < k_; ++i) scaled[r * k_ + i] = from[i] * weight;
    }
    BestDenseLanes().moments(
        {{scaled.data(), 1, k_}, {scaled.data(), k_, 1}, k_, k_, count, 1, true, lower_.data(), k_},
        scratch.data());
  }
  tokens_ += rows;
  return absl::OkStatus();
}

absl::StatusOr<GptqFactor> FactorMoments(const InputMoments& moments, const GptqOptions& options) {
  if (moments.tokens() == 0) return absl::FailedPreconditionError("no tokens were seen");
  const std::vector<double>& lower = moments.lower();
  GptqFactor factor;
  factor.k = moments.k();
  std::vector<double> diagonal(factor.k);
  double mean = 0;
  for (int64_t i = 0; i < factor.k; ++i) {
    double& d = diagonal[i];
    d = lower[i * factor.k + i];
    mean += d / static_cast<double>(factor.k);
    factor.dead_columns += d == 0 ? 1 : 0;
  }
  if (!(mean > 0)) return absl::FailedPreconditionError("all inputs were zero");
  // A dead column does not contribute to any error; any positive value makes H regular there.
  std::replace(diagonal.begin(), diagonal.end(), 0.0, mean);
  std::vector<double> reversed(lower.size());
  double damping = options.damping;
  for (int i = 0; i < options.damping_attempts; ++i, damping *= 10) {
    if (Factor(lower, diagonal, damping, reversed.data(), &factor)) return factor;
  }
  return FailedPrecondition(
      "the second moments of {} tokens cannot be factored, not even with a damping of {}",
      moments.tokens(), damping / 10);
}

int64_t GptqBlock(const MatrixLayout& layout, const GptqOptions& options) {
  if (layout.group >= layout.k) return options.block;
  return std::max(layout.group, options.block / layout.group * layout.group);
}

absl::StatusOr<QuantizedMatrix> QuantizeGptq(const MatrixLayout& layout,
                                             absl::Span<const float> weights,
                                             const GptqFactor& factor, const GptqOptions& options,
                                             OfflineDevice* device) {
  if (factor.k != layout.k) {
    return InvalidArgument("a matrix with {} inputs was given the moments of {}", layout.k,
                           factor.k);
  }
  for (const float v : weights) {
    if (!std::isfinite(v)) return absl::InvalidArgumentError("a weight is not finite");
  }
  std::optional<QuantizedMatrix> rounded;
  if (device != nullptr) rounded = device->Gptq(layout, weights, factor, options);
  if (!rounded) rounded = Rounding(layout, weights, factor, options).Run();
  if (!HasFiniteScales(*rounded)) return absl::FailedPreconditionError("a scale is not finite");
  return *std::move(rounded);
}

bool HasFiniteScales(const QuantizedMatrix& q) {
  const auto finite = [](float v) { return std::isfinite(v); };
  return std::all_of(q.scales.begin(), q.scales.end(), finite) &&
         std::all_of(q.offsets.begin(), q.offsets.end(), finite);
}

}  // namespace moert
