#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "store/residency/cache_policy.h"
#include "store/residency/capacity.h"

namespace moert {

std::vector<int> UniformCapacity(const MoeModelSpec& model, int64_t slots) {
  std::vector<int> capacity(model.layers.size(), 0);
  // Deals slots one by one, shallow layers first. Full layers leave their share to the others.
  bool dealt = true;
  while (slots > 0 && dealt) {
    dealt = false;
    for (size_t l = 0; l < capacity.size() && slots > 0; ++l) {
      if (capacity[l] == model.layers[l].num_experts) continue;
      ++capacity[l];
      --slots;
      dealt = true;
    }
  }
  return capacity;
}

int LeastRecentlyUsed(absl::Span<const VictimCandidate> candidates) {
  const auto earlier = [](const VictimCandidate& a, const VictimCandidate& b) {
    return std::pair(std::max(a.last_used, a.inserted), a.tokens) <
           std::pair(std::max(b.last_used, b.inserted), b.tokens);
  };
  return static_cast<int>(std::min_element(candidates.begin(), candidates.end(), earlier) -
                          candidates.begin());
}

namespace {

class LeastRecentlyUsedCache final : public CachePolicy {
 public:
  explicit LeastRecentlyUsedCache(const ResidencyRule& rule)
      : rule_(rule), dealer_(MakeSlotDealer(rule.capacity)) {}

  std::optional<ResidencyRule> rule() const override { return rule_; }
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    return dealer_->Capacity(snapshot);
  }
  void Observe(const LayerEvent& event) override {
    if (event.kind == LayerEvent::Kind::kRouted) dealer_->Observe(event);
  }

 private:
  const ResidencyRule rule_;
  const std::unique_ptr<SlotDealer> dealer_;
};

}  // namespace

std::unique_ptr<CachePolicy> MakeLeastRecentlyUsed(const ResidencyRule& rule) {
  return std::make_unique<LeastRecentlyUsedCache>(rule);
}

}  // namespace moert
