// CachePolicy: what a store asks who leaves, whether a rule says so or a host.
#ifndef MOERT_LIB_STORE_RESIDENCY_CACHE_POLICY_H_
#define MOERT_LIB_STORE_RESIDENCY_CACHE_POLICY_H_

#include <memory>

#include "moert/policy.h"
#include "store/lent_blocks.h"

namespace moert {

class CachePolicy : public ResidencyPolicy {
 public:
  /// Whether slots belong to no layer now; else each layer has those that Capacity gave it.
  virtual bool Shares() const { return false; }
  /// Shared slots: the layer that gives up an expert; which one, Victim says. `for_call`: to the
  /// layer call that was routed last, which has to wait; then what it has used itself may leave, if
  /// it is not read any more. Negative: none.
  virtual int Donor(bool /*for_call*/) { return -1; }

  /// Fills in what it knows of a layer of `experts`, whose slots are known, for a device to go on
  /// with.
  virtual void LendUse(int /*layer*/, int /*experts*/, LentLayer* /*loan*/) const {}
  /// The device has gone on with it.
  virtual void ResumeUse(int /*layer*/, const LentLayer& /*loan*/) {}
};

/// Carries a rule out, which is valid.
std::unique_ptr<CachePolicy> MakeCachePolicy(const ResidencyRule& rule);
/// Carries out the rule of `policy`; asks it where it has none, then it is borrowed. Null: least
/// recently used.
std::unique_ptr<CachePolicy> CarryOut(ResidencyPolicy* policy);

/// ResidencyRuleKind::kAverageScore. `entry_margin` >= 0: a prefetched expert only enters if its
/// average is higher by that share. A device refuses no prefetch, so there is no rule for that.
std::unique_ptr<CachePolicy> MakeAverageScore(const ResidencyRule& rule, double entry_margin = -1);

std::unique_ptr<CachePolicy> MakeLeastRecentlyUsed(const ResidencyRule& rule);

/// ResidencyRuleKind::kWorth. The expert worth least leaves; what a prefetch brought, not before
/// the routing it was meant for. A prefetch that says how likely it is wanted
/// (VictimSnapshot::probability) is refused where what it saves is less than the uses that its
/// victim would have had.
std::unique_ptr<CachePolicy> MakeWorthCache(const ResidencyRule& rule);

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_CACHE_POLICY_H_
