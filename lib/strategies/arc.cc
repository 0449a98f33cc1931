#include "strategies/arc.h"

#include <algorithm>

#include "store/state_bytes.h"
namespace moert {

ArcLists::ArcLists(int experts, int capacity)
    : capacity_(capacity), nodes_(experts), counts_(experts, 0) {}

void ArcLists::SetCapacity(int capacity) {
  capacity_ = capacity;
  p_ = std::min<double>(p_, capacity);
  TrimGhosts();
}

void ArcLists::Request(absl::Span<const int32_t> counts) {
  order_.clear();
  for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
    nodes_[e].missed = false;
    if (counts[e] > 0) order_.push_back(e);
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return counts[a] < counts[b]; });
  counts_.assign(counts.begin(), counts.end());
  for (const int32_t e : order_) RequestOne(e);
  for (int e = head_[kPrefetched]; e >= 0; e = nodes_[e].next) nodes_[e].passed_by = true;
}

void ArcLists::RequestOne(int e) {
  Node& node = nodes_[e];
  switch (node.list) {
    case kT1:
    case kT2:  // Case I
      Unlink(e);
      return Append(e, kT2);
    case kB1:
    case kB2:  // Cases II and III; the expert changes lists when it has arrived
      Adapt(node.list);
      node.missed = true;
      return;
    case kPrefetched:
      Unlink(e);
      if (node.origin != kNowhere) Adapt(node.origin);
      Append(e, node.origin == kNowhere ? kT1 : kT2);
      return TrimGhosts();
    default:
      node.missed = true;
  }
}

void ArcLists::Inserted(int e, bool prefetch) {
  Node& node = nodes_[e];
  const List origin = node.list;
  if (origin != kNowhere) Unlink(e);
  const bool ghost = origin == kB1 || origin == kB2;
  const bool asked_for = node.missed;
  node.missed = false;
  if (prefetch && !asked_for) {
    node.origin = ghost ? origin : kNowhere;
    node.passed_by = false;
    Append(e, kPrefetched);
  } else {
    Append(e, ghost ? kT2 : kT1);
  }
  TrimGhosts();
}

void ArcLists::Evicted(int e) {
  const Node node = nodes_[e];
  if (node.list == kNowhere) return;
  Unlink(e);
  if (node.list == kT1) Append(e, kB1);
  if (node.list == kT2) Append(e, kB2);
  // An unused prefetch returns to the ghost list that it came from, as the oldest entry.
  if (node.list == kPrefetched && node.origin != kNowhere) {
    Link(e, node.origin, -1, head_[node.origin]);
  }
  TrimGhosts();
}

int ArcLists::Victim(int incoming, const std::vector<uint8_t>& allowed) const {
  int e = First(kPrefetched, allowed, /*passed_by_only=*/true);
  if (e >= 0) return e;
  const bool from_b2 = incoming >= 0 && nodes_[incoming].list == kB2;
  const double t1 = size_[kT1];
  const bool shrink_t1 = t1 > 0 && (t1 > p_ || (from_b2 && t1 == p_));
  e = First(shrink_t1 ? kT1 : kT2, allowed, false);
  if (e < 0) e = First(shrink_t1 ? kT2 : kT1, allowed, false);
  return e >= 0 ? e : First(kPrefetched, allowed, false);
}

std::vector<int> ArcLists::Contents(List list) const {
  std::vector<int> experts;
  for (int e = head_[list]; e >= 0; e = nodes_[e].next) experts.push_back(e);
  return experts;
}

void ArcLists::Unlink(int e) {
  Node& node = nodes_[e];
  (node.previous >= 0 ? nodes_[node.previous].next : head_[node.list]) = node.next;
  (node.next >= 0 ? nodes_[node.next].previous : tail_[node.list]) = node.previous;
  --size_[node.list];
  node.list = kNowhere;
}

void ArcLists::Link(int e, List list, int previous, int next) {
  Node& node = nodes_[e];
  node.list = list;
  node.previous = previous;
  node.next = next;
  (previous >= 0 ? nodes_[previous].next : head_[list]) = e;
  (next >= 0 ? nodes_[next].previous : tail_[list]) = e;
  ++size_[list];
}

void ArcLists::Append(int e, List list) {
  int before = tail_[list];
  const bool by_tokens = counts_[e] > 0 && (list == kT1 || list == kT2);
  while (by_tokens && before >= 0 && counts_[before] > counts_[e]) before = nodes_[before].previous;
  Link(e, list, before, before >= 0 ? nodes_[before].next : head_[list]);
}

void ArcLists::Adapt(List ghost) {
  const List other = ghost == kB1 ? kB2 : kB1;
  // The expert itself counts as a member of its list, also when a prefetch has taken it out.
  const double step =
      std::max(1.0, size_[other] / std::max(1.0, static_cast<double>(size_[ghost])));
  p_ = std::clamp<double>(ghost == kB1 ? p_ + step : p_ - step, 0, capacity_);
}

/// |T1| + |B1| <= c and |T1| + |T2| + |B1| + |B2| <= 2c, the oldest ghosts go.
void ArcLists::TrimGhosts() {
  // A layer over its capacity soon evicts an expert, which may then become a ghost.
  if (size_[kT1] + size_[kT2] > capacity_) return;
  while (size_[kB1] > 0 && size_[kT1] + size_[kB1] > capacity_) Unlink(head_[kB1]);
  while (size_[kT1] + size_[kT2] + size_[kB1] + size_[kB2] > 2 * capacity_) {
    Unlink(head_[size_[kB2] > 0 ? kB2 : kB1]);
  }
}

int ArcLists::First(List list, const std::vector<uint8_t>& allowed, bool passed_by_only) const {
  for (int e = head_[list]; e >= 0; e = nodes_[e].next) {
    if (allowed[e] != 0 && (!passed_by_only || nodes_[e].passed_by)) return e;
  }
  return -1;
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
