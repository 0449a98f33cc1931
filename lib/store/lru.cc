#include "store/lru.h"

#include <algorithm>
#include <utility>

namespace moert {

std::vector<int> UniformCapacity(const MoeModelSpec& model, int64_t slots) {
  std::vector<int> capacity(model.layers.size(), 0);
  // Dealt one by one, shallow layers first: layers that are full leave theirs to the others.
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

class Lru final : public ResidencyPolicy {
 public:
  PolicyTraits traits() const override {
    PolicyTraits traits;
    traits.least_recently_used = true;
    return traits;
  }
  int Victim(const VictimSnapshot& snapshot) override {
    return LeastRecentlyUsed(snapshot.candidates);
  }
};

}  // namespace

std::unique_ptr<ResidencyPolicy> MakeLru() { return std::make_unique<Lru>(); }

}  // namespace moert
