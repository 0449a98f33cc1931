// GPTQ (Frantar et al., 2022): rounds the columns of a matrix in order and adjusts the columns not
// yet rounded to compensate for each error, according to the second moments of the layer's inputs.
//
// Without activation order: the groups of a row stay contiguous, as kernels read them.
#ifndef MOERT_LIB_OFFLINE_GPTQ_H_
#define MOERT_LIB_OFFLINE_GPTQ_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "offline/dense_lanes.h"
#include "offline/hqq.h"
#include "offline/rtn.h"
#include "quant/quantized_matrix.h"

namespace moert {

/// a: [k, k] row-major; only the lower triangle is read, and it becomes the factor. The elements
/// above it are undefined afterwards. False if the matrix is not positive definite.
bool FactorCholesky(int64_t k, double* a, const DenseLanes& lanes = *DenseLaneSets()[0]);

class OfflineDevice;

/// Second moments of a linear block's inputs, H = sum over tokens of weight^2 x x^T. Not
/// thread-safe.
class InputMoments {
 public:
  explicit InputMoments(int64_t k);
  /// Those of `tokens` tokens. lower: [k, k], of which the lower triangle is read.
  InputMoments(int64_t k, int64_t tokens, std::vector<double> lower);
  /// x: [rows, k], row-major. weights: [rows], the weight of each token (its router weight), or
  /// empty for 1. Refuses values that are not finite, since a single one would spoil the sums.
  absl::Status Add(absl::Span<const float> x, absl::Span<const float> weights);

  int64_t k() const { return k_; }
  int64_t tokens() const { return tokens_; }
  /// [k, k], the lower triangle.
  const std::vector<double>& lower() const { return lower_; }

 private:
  int64_t k_;
  int64_t tokens_ = 0;
  std::vector<double> lower_;
};

struct GptqOptions {
  int64_t block = 64;        // columns whose errors are spread together (rounded to whole groups)
  double damping = 0.01;     // of the mean of the diagonal, added to it
  int damping_attempts = 6;  // ten times as much each time the factorization fails
  RtnOptions clip;           // how a group's scale is fitted
};

/// The columns of a block: whole groups, or any number if a row is a single group.
int64_t GptqBlock(const MatrixLayout& layout, const GptqOptions& options);

/// GPTQ's part of the moments: the upper triangular M with H = M M^T. Serves every matrix with
/// these inputs. With D the errors of the columns before c, column c is best rounded as
/// w_c + sum over j < c of D_j M_jc / M_cc: the same as the published updates by the inverse of H.
struct GptqFactor {
  int64_t k = 0;
  std::vector<float> shares;  // [k, k], row-major: M_jc / M_cc; M_cc itself on the diagonal
  double damping = 0;         // that was needed
  int64_t dead_columns = 0;   // inputs that were always zero
};

/// FailedPrecondition if H cannot be factored whatever the damping allowed, or has no tokens.
absl::StatusOr<GptqFactor> FactorMoments(const InputMoments& moments, const GptqOptions& options);

/// weights: row-major [rows, k] of layout. Columns whose input was always zero are rounded to
/// nearest like all others (the published code sets them to zero, which deletes weights of an
/// expert that saw too few tokens). FailedPrecondition if a scale is not finite. `device`, if any,
/// does the work, with the same outcome except for fused products, which some CPUs lack.
absl::StatusOr<QuantizedMatrix> QuantizeGptq(const MatrixLayout& layout,
                                             absl::Span<const float> weights,
                                             const GptqFactor& factor,
                                             const GptqOptions& options = {},
                                             OfflineDevice* device = nullptr);
/// Offsets included.
bool HasFiniteScales(const QuantizedMatrix& q);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_GPTQ_H_
