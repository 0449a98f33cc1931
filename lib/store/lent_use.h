// LentUse: what a residency policy knows of a layer, while somebody else decides by it.
#ifndef MOERT_LIB_STORE_LENT_USE_H_
#define MOERT_LIB_STORE_LENT_USE_H_

#include "store/lent_blocks.h"

namespace moert {

/// What a residency policy is besides, that evicts by what it knows of the experts of the layer
/// (PolicyTraits::by_worth, score_window, by_arc).
class LentUse {
 public:
  virtual ~LentUse() = default;
  /// Calls that scores are kept of, by average score; 0: by another rule.
  virtual int window() const { return 0; }
  /// Fills in what it knows of a layer, whose slots are known. Arrays stay empty before its first
  /// call.
  virtual void LendUse(int layer, LentLayer* loan) const = 0;
  /// Others have gone on with it.
  virtual void ResumeUse(int layer, const LentLayer& loan) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_LENT_USE_H_
