// CachePolicy: chooses the experts that leave a store's cache, by a rule or by a host's policy.
#ifndef MOERT_LIB_STORE_RESIDENCY_CACHE_POLICY_H_
#define MOERT_LIB_STORE_RESIDENCY_CACHE_POLICY_H_

#include <memory>

#include "moert/policy.h"
#include "store/lent_blocks.h"

namespace moert {

class CachePolicy : public ResidencyPolicy {
 public:
  /// Whether the layers share all slots now; else each layer has those that Capacity gave it.
  virtual bool Shares() const { return false; }
  /// For shared slots: the layer that gives up an expert, which Victim then chooses; negative:
  /// none. `for_call`: the slot is for the layer call that was routed last and waits for it. Then
  /// experts that this call itself has used may leave, if they are not read any more.
  virtual int Donor(bool /*for_call*/) { return -1; }

  /// Fills in the policy's state of a layer of `experts`, with which a device continues. The loan's
  /// slots are set already.
  virtual void LendUse(int /*layer*/, int /*experts*/, LentLayer* /*loan*/) const {}
  /// Takes over the state as the device left it.
  virtual void ResumeUse(int /*layer*/, const LentLayer& /*loan*/) {}
};

/// A policy that carries out `rule`, which must be valid.
std::unique_ptr<CachePolicy> MakeCachePolicy(const ResidencyRule& rule);
/// Carries out the rule of `policy`. If it has none, asks `policy`, which is then borrowed. Null:
/// least recently used.
std::unique_ptr<CachePolicy> CarryOut(ResidencyPolicy* policy);

/// ResidencyRuleKind::kAverageScore. `entry_margin` >= 0: a prefetched expert enters only if its
/// average is higher than its victim's by that share. A device refuses no prefetch, so
/// ResidencyRule has no such field.
std::unique_ptr<CachePolicy> MakeAverageScore(const ResidencyRule& rule, double entry_margin = -1);

std::unique_ptr<CachePolicy> MakeLeastRecentlyUsed(const ResidencyRule& rule);

/// ResidencyRuleKind::kWorth. The expert worth least leaves; a prefetched expert does not leave
/// before the routing that it was meant for. A prefetch with a known probability of use
/// (VictimSnapshot::probability) is refused if it saves less than the uses that its victim would
/// have had.
std::unique_ptr<CachePolicy> MakeWorthCache(const ResidencyRule& rule);

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_CACHE_POLICY_H_
