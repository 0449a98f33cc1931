// Half-quadratic quantization (Badri and Shaji, 2023): calibration-free. With the scale of a group
// fixed, alternates the proximal operator of |residual|^p, which lets outliers be wrong, and the
// closed-form zero point that is best for the rest. Groups run along the input dimension.
#ifndef MOERT_LIB_OFFLINE_HQQ_H_
#define MOERT_LIB_OFFLINE_HQQ_H_

#include <vector>

#include "absl/types/span.h"
#include "moert/scheme.h"
#include "offline/rtn.h"
#include "quant/quantized_matrix.h"

namespace moert {

class OfflineDevice;

struct HqqOptions {
  double lp_norm = 0.7;
  double beta = 10;
  double kappa = 1.01;
  int iterations = 20;
  /// The published method keeps the scale that spans the group. This implementation tries `scales`
  /// candidates, from that scale down to the share `smallest` of it; each gets its own zero, and
  /// the least sum of |error|^select decides. 1: the published method.
  int scales = 24;
  double smallest = 0.4;
  double select = 2.0;
};

/// Symmetric schemes have no zero to optimize: the scale is optimized in its place. fp8 is fitted
/// like FitGroup does.
GroupScale FitHqq(const Scheme& scheme, absl::Span<const float> values, const HqqOptions& options);

/// The same without vector instructions, as the reference for FitHqq.
GroupScale FitHqqScalar(const Scheme& scheme, absl::Span<const float> values,
                        const HqqOptions& options);

/// The ratio of a candidate scale to the scale that spans the group.
float HqqShare(const HqqOptions& options, int candidate);

/// For each iteration: beta, and the residual up to which a weight is no outlier.
struct HqqSteps {
  std::vector<double> betas;
  std::vector<float> thresholds;
};
HqqSteps HqqStepsOf(const HqqOptions& options);

/// weights: row-major [rows, k] of layout. `device`, if any, searches for scales, with the same
/// outcome.
QuantizedMatrix QuantizeHqq(const MatrixLayout& layout, absl::Span<const float> weights,
                            const HqqOptions& options = {}, OfflineDevice* device = nullptr);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_HQQ_H_
