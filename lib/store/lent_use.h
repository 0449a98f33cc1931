// LentUse: what a residency policy knows of a layer, while somebody else decides by it.
#ifndef MOERT_LIB_STORE_LENT_USE_H_
#define MOERT_LIB_STORE_LENT_USE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cuda/served_use.h"

namespace moert {

/// What a residency policy is besides, that evicts by the worth of experts
/// (PolicyTraits::by_worth).
class LentUse {
 public:
  virtual ~LentUse() = default;
  /// How many calls of the layer it has seen, and what it knows of each expert; empty: of none.
  virtual int64_t CallsOf(int layer) const = 0;
  virtual absl::Span<const cuda::ServedUse> UseOf(int layer) const = 0;
  /// How many experts a call of the layer brings, on average.
  virtual double InsertedOf(int layer) const = 0;
  /// Others have gone on with it: [E].
  virtual void Resume(int layer, int64_t calls, double inserted,
                      absl::Span<const cuda::ServedUse> use) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_LENT_USE_H_
