// Encodes one weight matrix into its place in a record, and decodes it: for hosts that hand over
// packed records (WeightPart::kRecord of moert/source/host_source.h) or check what a scheme does to
// their weights.
#ifndef MOERT_OFFLINE_ENCODE_MATRIX_H_
#define MOERT_OFFLINE_ENCODE_MATRIX_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/offline/quantize.h"
#include "moert/scheme.h"

namespace moert {

/// Rounds one matrix of MakeRecordLayout by kRtn or kHqq and writes its sections. weights:
/// row-major [rows, k], finite. `record` is the start of the record, layout.bytes long.
/// InvalidArgument where a size or a weight does not fit; Unimplemented for kGptq, which has to
/// know the inputs.
absl::Status EncodeMatrix(const MatrixLayout& layout, QuantMethod method,
                          absl::Span<const float> weights, std::byte* record);

/// The weights that a record encodes, row-major fp32 [rows, k].
absl::Status DecodeMatrix(const MatrixLayout& layout, const std::byte* record,
                          std::vector<float>* weights);

}  // namespace moert

#endif  // MOERT_OFFLINE_ENCODE_MATRIX_H_
