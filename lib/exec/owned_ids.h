// Ids on a device of which this rank computes some: those of its experts, of those that several
// ranks own its share of the tokens.
#ifndef MOERT_LIB_EXEC_OWNED_IDS_H_
#define MOERT_LIB_EXEC_OWNED_IDS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace moert {

/// A rank's share of an expert: tokens t with t % of == index. of 0: none.
struct OwnerShare {
  int16_t of = 0;
  int16_t index = 0;

  bool Has(int64_t token) const { return of > 0 && token % of == index; }
};

/// Calls that were enqueued are done before Set, before TakeCounts, and before it goes.
class OwnedIds {
 public:
  virtual ~OwnedIds() = default;
  /// Sets the owners of all layers' experts.
  virtual absl::Status Set(absl::Span<const OwnerShare> shares) = 0;
  /// [rows, top_k] of the layer whose first expert is `first`, in device memory: `ids` with -1 for
  /// what is not this rank's, or out of range. Counts the others. Enqueued; valid until the next
  /// call, and in the same place.
  virtual absl::StatusOr<const int32_t*> Keep(int64_t first, int experts, const int32_t* ids,
                                              int64_t rows, int64_t top_k, void* stream) = 0;
  /// Ids that were kept since the last call, of all layers' experts.
  virtual absl::StatusOr<std::vector<int64_t>> TakeCounts() = 0;
};

/// experts: of all layers; pairs: most ids of a call. Unavailable without CUDA.
absl::StatusOr<std::unique_ptr<OwnedIds>> MakeOwnedIds(int device, int64_t experts, int64_t pairs);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_OWNED_IDS_H_
