#include "store/residency/cache_policy.h"

#include <optional>
#include <vector>

namespace moert {
namespace {

/// A policy without a rule.
class Asked final : public CachePolicy {
 public:
  explicit Asked(ResidencyPolicy* policy) : policy_(policy) {}

  PolicyTraits traits() const override { return policy_->traits(); }
  int64_t StateBytes(const PolicyScope& scope) const override {
    return policy_->StateBytes(scope);
  }
  void Observe(const LayerEvent& event) override { policy_->Observe(event); }
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    return policy_->Capacity(snapshot);
  }
  int Victim(const VictimSnapshot& snapshot) override { return policy_->Victim(snapshot); }

 private:
  ResidencyPolicy* const policy_;
};

}  // namespace

std::unique_ptr<CachePolicy> MakeCachePolicy(const ResidencyRule& rule) {
  switch (rule.kind) {
    case ResidencyRuleKind::kWorth:
      return MakeWorthCache(rule);
    case ResidencyRuleKind::kAverageScore:
      return MakeAverageScore(rule);
    case ResidencyRuleKind::kLeastRecentlyUsed:
      break;
  }
  return MakeLeastRecentlyUsed(rule);
}

std::unique_ptr<CachePolicy> CarryOut(ResidencyPolicy* policy) {
  if (policy == nullptr) return MakeCachePolicy({});
  const std::optional<ResidencyRule> rule = policy->rule();
  if (rule.has_value()) return MakeCachePolicy(*rule);
  return std::make_unique<Asked>(policy);
}

}  // namespace moert
