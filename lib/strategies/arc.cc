#include "strategies/arc.h"

#include <algorithm>

#include "store/state_bytes.h"
namespace moert {

ArcLists::ArcLists(int experts, int capacity) : nodes_(experts), counts_(experts, 0) {
  state_.capacity = capacity;
}

void ArcLists::Request(absl::Span<const int32_t> counts) {
  order_.clear();
  for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
    nodes_[e].missed = 0;
    if (counts[e] > 0) order_.push_back(e);
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return counts[a] < counts[b]; });
  counts_.assign(counts.begin(), counts.end());
  lists().Request(order_.data(), static_cast<int>(order_.size()));
}

std::vector<int> ArcLists::Contents(List list) const {
  std::vector<int> experts;
  for (int e = state_.head[list]; e >= 0; e = nodes_[e].next) experts.push_back(e);
  return experts;
}

namespace {

class Arc final : public ResidencyPolicy {
 public:
  explicit Arc(const CapacityRule& capacity) : dealer_(MakeSlotDealer(capacity)) {}

  int64_t StateBytes(const PolicyScope& scope) const override {
    return PerExpert(scope, ArcLists::kBytesPerExpert) + PerLayerExpert(scope, 2) +
           scope.model->num_layers() * int64_t{sizeof(ArcLists)} + dealer_->StateBytes(scope);
  }

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    std::vector<int> capacity = dealer_->Capacity(snapshot);
    for (size_t l = 0; l < capacity.size(); ++l) {
      if (l == layers_.size()) {
        layers_.emplace_back(snapshot.model->layers[l].num_experts, capacity[l]);
      }
      layers_[l].SetCapacity(capacity[l]);
    }
    return capacity;
  }

  void Observe(const LayerEvent& event) override {
    switch (event.kind) {
      case LayerEvent::Kind::kRouted:
        layers_[event.context.layer].Request(event.routing.counts);
        dealer_->Observe(event);
        return;
      case LayerEvent::Kind::kInserted:
        layers_[event.key.layer].Inserted(event.key.expert, event.prefetched);
        return;
      case LayerEvent::Kind::kEvicted:
        layers_[event.key.layer].Evicted(event.key.expert);
        return;
    }
  }

  int Victim(const VictimSnapshot& snapshot) override {
    const int layer = snapshot.candidates.front().key.layer;
    if (layer != snapshot.candidates.back().key.layer) {
      return LeastRecentlyUsed(snapshot.candidates);
    }
    allowed_.assign(snapshot.context.model->layers[layer].num_experts, 0);
    for (const VictimCandidate& candidate : snapshot.candidates) allowed_[candidate.key.expert] = 1;
    const int incoming = snapshot.incoming.layer == layer ? snapshot.incoming.expert : -1;
    const int victim = layers_[layer].Victim(incoming, allowed_);
    const auto it = std::find_if(
        snapshot.candidates.begin(), snapshot.candidates.end(),
        [&](const VictimCandidate& candidate) { return candidate.key.expert == victim; });
    return static_cast<int>(it - snapshot.candidates.begin());
  }

 private:
  const std::unique_ptr<SlotDealer> dealer_;
  std::vector<ArcLists> layers_;
  std::vector<uint8_t> allowed_;  // scratch
};

}  // namespace

std::unique_ptr<ResidencyPolicy> MakeArc(const CapacityRule& capacity) {
  return std::make_unique<Arc>(capacity);
}

}  // namespace moert
