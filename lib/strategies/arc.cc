#include "strategies/arc.h"

#include <algorithm>
#include <utility>

namespace moert {

ArcLists::ArcLists(int experts, int capacity) : capacity_(capacity), nodes_(experts) {
  head_.fill(-1);
  tail_.fill(-1);
}

void ArcLists::SetCapacity(int capacity) {
  capacity_ = capacity;
  p_ = std::min(p_, static_cast<double>(capacity));
  TrimGhosts();
}

void ArcLists::Request(absl::Span<const int32_t> counts) {
  ++call_;
  order_.clear();
  for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
    if (counts[e] == 0) continue;
    nodes_[e].call = call_;
    nodes_[e].tokens = counts[e];
    order_.push_back(e);
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return counts[a] < counts[b]; });
  for (const int e : order_) {
    Node& node = nodes_[e];
    switch (node.list) {
      case kT1:
      case kT2:  // Case I
        Unlink(e);
        Append(e, kT2);
        break;
      case kB1:
      case kB2:  // Cases II and III; it moves when it has come
        Adapt(node.list);
        node.missed = call_;
        break;
      case kPrefetched: {
        const List origin = node.origin;
        Unlink(e);
        if (origin != kNowhere) Adapt(origin);
        Append(e, origin == kNowhere ? kT1 : kT2);
        TrimGhosts();
        break;
      }
      case kNowhere:
        node.missed = call_;
        break;
    }
  }
  for (int e = head_[kPrefetched]; e >= 0; e = nodes_[e].next) nodes_[e].passed_by = true;
}

void ArcLists::Inserted(int expert, bool prefetch) {
  Node& node = nodes_[expert];
  const List origin = node.list;
  if (origin != kNowhere) Unlink(expert);
  const bool ghost = origin == kB1 || origin == kB2;
  const bool asked_for = node.missed == call_;
  node.missed = -1;
  if (prefetch && !asked_for) {
    node.origin = ghost ? origin : kNowhere;
    node.passed_by = false;
    Append(expert, kPrefetched);
  } else {
    Append(expert, ghost ? kT2 : kT1);
  }
  TrimGhosts();
}

void ArcLists::Evicted(int expert) {
  const Node node = nodes_[expert];
  if (node.list == kNowhere) return;
  Unlink(expert);
  if (node.list == kT1) Append(expert, kB1);
  if (node.list == kT2) Append(expert, kB2);
  // An unused prefetch leaves no trace: it becomes the ghost that it was, the oldest one now.
  if (node.list == kPrefetched && node.origin != kNowhere) Prepend(expert, node.origin);
  TrimGhosts();
}

int ArcLists::Victim(int incoming, const std::vector<uint8_t>& allowed) const {
  if (const int e = First(kPrefetched, allowed, /*passed_by_only=*/true); e >= 0) return e;
  // REPLACE(x, p).
  const bool from_b2 = incoming >= 0 && nodes_[incoming].list == kB2;
  const double t1 = sizes_[kT1];
  const bool shrink_t1 = t1 > 0 && (t1 > p_ || (from_b2 && t1 == p_));
  const List first = shrink_t1 ? kT1 : kT2;
  if (const int e = First(first, allowed, false); e >= 0) return e;
  if (const int e = First(shrink_t1 ? kT2 : kT1, allowed, false); e >= 0) return e;
  return First(kPrefetched, allowed, false);
}

std::vector<int> ArcLists::Contents(List list) const {
  std::vector<int> experts;
  for (int e = head_[list]; e >= 0; e = nodes_[e].next) experts.push_back(e);
  return experts;
}

void ArcLists::Unlink(int expert) {
  Node& node = nodes_[expert];
  (node.previous >= 0 ? nodes_[node.previous].next : head_[node.list]) = node.next;
  (node.next >= 0 ? nodes_[node.next].previous : tail_[node.list]) = node.previous;
  --sizes_[node.list];
  node.list = kNowhere;
}

void ArcLists::Append(int expert, List list) {
  Node& node = nodes_[expert];
  int before = tail_[list];
  const bool ghost = list == kB1 || list == kB2;
  while (!ghost && before >= 0 && nodes_[before].call == node.call &&
         nodes_[before].tokens > node.tokens) {
    before = nodes_[before].previous;
  }
  node.list = list;
  node.previous = before;
  node.next = before >= 0 ? nodes_[before].next : head_[list];
  (before >= 0 ? nodes_[before].next : head_[list]) = expert;
  (node.next >= 0 ? nodes_[node.next].previous : tail_[list]) = expert;
  ++sizes_[list];
}

void ArcLists::Prepend(int expert, List list) {
  Node& node = nodes_[expert];
  node.list = list;
  node.previous = -1;
  node.next = head_[list];
  (node.next >= 0 ? nodes_[node.next].previous : tail_[list]) = expert;
  head_[list] = expert;
  ++sizes_[list];
}

void ArcLists::Adapt(List ghost) {
  const List other = ghost == kB1 ? kB2 : kB1;
  // The expert itself counts as a member of its list, also when a prefetch has taken it out.
  const double mine = std::max(1, sizes_[ghost]);
  const double step = std::max(1.0, sizes_[other] / mine);
  p_ =
      ghost == kB1 ? std::min(p_ + step, static_cast<double>(capacity_)) : std::max(p_ - step, 0.0);
}

void ArcLists::TrimGhosts() {
  // A layer over its capacity loses somebody soon, who may be a ghost then.
  if (sizes_[kT1] + sizes_[kT2] > capacity_) return;
  while (sizes_[kB1] > 0 && sizes_[kT1] + sizes_[kB1] > capacity_) ForgetOldest(kB1);
  while (sizes_[kT1] + sizes_[kT2] + sizes_[kB1] + sizes_[kB2] > 2 * capacity_) {
    ForgetOldest(sizes_[kB2] > 0 ? kB2 : kB1);
  }
}

void ArcLists::ForgetOldest(List ghost) { Unlink(head_[ghost]); }

int ArcLists::First(List list, const std::vector<uint8_t>& allowed, bool passed_by_only) const {
  for (int e = head_[list]; e >= 0; e = nodes_[e].next) {
    if (allowed[e] && (!passed_by_only || nodes_[e].passed_by)) return e;
  }
  return -1;
}

namespace {

class Arc final : public ResidencyPolicy {
 public:
  explicit Arc(std::unique_ptr<CapacityRule> rule) : rule_(std::move(rule)) {}

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    std::vector<int> capacity = rule_->Capacity(snapshot);
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
        rule_->Observe(event);
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
    for (const VictimCandidate& candidate : snapshot.candidates) {
      allowed_[candidate.key.expert] = 1;
    }
    const int incoming = snapshot.incoming.layer == layer ? snapshot.incoming.expert : -1;
    const int victim = layers_[layer].Victim(incoming, allowed_);
    const auto it = std::find_if(
        snapshot.candidates.begin(), snapshot.candidates.end(),
        [&](const VictimCandidate& candidate) { return candidate.key.expert == victim; });
    return static_cast<int>(it - snapshot.candidates.begin());
  }

 private:
  const std::unique_ptr<CapacityRule> rule_;
  std::vector<ArcLists> layers_;
  std::vector<uint8_t> allowed_;  // scratch
};

}  // namespace

std::unique_ptr<ResidencyPolicy> MakeArc(std::unique_ptr<CapacityRule> rule) {
  return std::make_unique<Arc>(std::move(rule));
}

}  // namespace moert
