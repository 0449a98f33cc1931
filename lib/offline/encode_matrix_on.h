// EncodeMatrix with a device's help.
#ifndef MOERT_LIB_OFFLINE_ENCODE_MATRIX_ON_H_
#define MOERT_LIB_OFFLINE_ENCODE_MATRIX_ON_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/offline/quantize.h"
#include "moert/scheme.h"
#include "offline/offline_device.h"

namespace moert::offline {

/// As EncodeMatrix, to the same bytes; `device` may be null. Throws std::bad_alloc.
absl::Status EncodeMatrixOn(OfflineDevice* device, const MatrixLayout& layout, QuantMethod method,
                            absl::Span<const float> weights, std::byte* record);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_ENCODE_MATRIX_ON_H_
