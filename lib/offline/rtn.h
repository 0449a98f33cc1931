// Round to nearest, with the best clipping: the scale (and zero) of each group is searched over
// shrunken ranges for the least sum of |error|^2.4, as in GPTQ's published quantizer.
#ifndef MOERT_LIB_OFFLINE_RTN_H_
#define MOERT_LIB_OFFLINE_RTN_H_

#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "moert/scheme.h"
#include "quant/quantized_matrix.h"

namespace moert {

class OfflineDevice;
struct RtnLanes;

struct RtnOptions {
  int grid = 100;         // candidate ranges between 1 and ...
  double smallest = 0.2;  // ... this share of the full one
  double norm = 2.4;
};

/// Scale and offset of one group of weights.
struct GroupScale {
  float scale = 0;
  float offset = 0;  // asymmetric: scale * zero; with zero points: the zero

  /// The scale is no number where it is yet to be searched for.
  static GroupScale Unknown() { return {std::numeric_limits<float>::quiet_NaN(), 0}; }
  bool Known() const { return scale == scale; }
};

/// The vector functions for this processor; null: there are none. They change no result.
const RtnLanes* BestRtnLanes();

/// The best range for `values` under a scheme, rounded as it will be stored.
GroupScale FitGroup(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options,
                    const RtnLanes* lanes = BestRtnLanes());

/// The same without vector instructions, as the reference for FitGroup.
GroupScale FitGroupScalar(const Scheme& scheme, absl::Span<const float> values,
                          const RtnOptions& options);

/// Whether the scheme has integer codes with bf16 scales: the library's own schemes, not imported
/// ones.
bool HasPlainCodes(const Scheme& scheme);

/// fp4 and fp8: the largest magnitude of a code.
float LargestFloat(const Scheme& scheme);

/// The weight that a code stands for.
float RestoreCode(const Scheme& scheme, const GroupScale& group, uint8_t code);

/// The code of one weight under a group's scale.
uint8_t RoundToCode(const Scheme& scheme, const GroupScale& group, float weight);

/// RoundToCode of every weight of a group. `codes` has room for weights.size().
void RoundGroup(const Scheme& scheme, const GroupScale& group, absl::Span<const float> weights,
                uint8_t* codes, const RtnLanes* lanes = BestRtnLanes());

/// Rounds every group to nearest under the scale that `fit` gives for its weights.
QuantizedMatrix QuantizeGroups(const MatrixLayout& layout, absl::Span<const float> weights,
                               absl::FunctionRef<GroupScale(absl::Span<const float>)> fit);

/// weights: row-major [rows, k] of layout. `device`, if any, searches for scales, with the same
/// outcome.
QuantizedMatrix QuantizeRtn(const MatrixLayout& layout, absl::Span<const float> weights,
                            const RtnOptions& options = {}, OfflineDevice* device = nullptr);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_H_
