// ARC: the adaptive replacement cache of Megiddo and Modha (FAST 2003), one a layer (Fate
// Sec. 4.4), as a residency policy that any strategy may use.
//
// T1 holds experts requested once since they came, T2 those requested again; B1 and B2 remember
// whom T1 and T2 lost. p, the size T1 aims at, grows when an expert of B1 is asked for again (T1
// was too small) and shrinks for one of B2. With one request a layer call, no prefetch and every
// block belonging to some layer this is the published algorithm, request by request. Where the
// engine differs from a page cache:
//   - a layer call requests several experts at once: they count as requested in ascending number of
//     tokens, so that the most popular are the most recent;
//   - experts in use are not candidates: the replacement takes the best of those that are;
//   - a prefetch is no request. A prefetched expert waits in a list of its own, remembers the ghost
// list it was found in, and enters T1 or T2 when it is first used, as the miss it would have been.
//     Once the routing it was meant for has passed it by, it is the first to leave. One that comes
//     when the routing has already asked for it is the miss that it came too late for;
//   - a layer may be over its capacity until its call ends, and an expert may leave for reasons of
//     another layer: the lists follow what happened.
#ifndef MOERT_LIB_STRATEGIES_ARC_H_
#define MOERT_LIB_STRATEGIES_ARC_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "moert/policy.h"
#include "store/residency/capacity.h"

namespace moert {

enum ArcList : uint8_t { kArcNowhere, kArcT1, kArcT2, kArcB1, kArcB2, kArcPrefetched };
constexpr int kArcLists = 6;

/// The lists lie in arrays, a node an expert. A call takes a few steps for every expert that it
/// requests, brings or lets go.
struct alignas(16) ArcNode {
  int32_t previous = -1, next = -1;  // in its list, least recent first
  uint8_t list = kArcNowhere;
  uint8_t origin = kArcNowhere;  // kArcPrefetched: the ghost list it came from
  uint8_t passed_by = 0;         // kArcPrefetched: a routing came and did not use it
  uint8_t missed = 0;            // the running call asked for it and found nothing
  int32_t unused = 0;
};

/// The lists of a layer.
struct ArcState {
  double p = 0;  // the size that T1 aims at
  int32_t head[kArcLists] = {-1, -1, -1, -1, -1, -1};
  int32_t tail[kArcLists] = {-1, -1, -1, -1, -1, -1};
  int32_t size[kArcLists] = {};
  int32_t capacity = 0;
  int32_t unused = 0;
};

/// The lists of a layer, where they lie.
struct ArcView {
  ArcState* state = nullptr;
  ArcNode* nodes = nullptr;         // [experts]
  const int32_t* counts = nullptr;  // [experts] tokens of the running call; null: none runs

  void SetCapacity(int capacity) const {
    state->capacity = capacity;
    if (state->p > capacity) state->p = capacity;
    TrimGhosts();
  }
  /// A call requested the experts of `order`: of fewer tokens first, of equals the lower index.
  /// `missed` of all nodes is 0.
  void Request(const int32_t* order, int requested) const {
    for (int i = 0; i < requested; ++i) RequestOne(order[i]);
    for (int e = state->head[kArcPrefetched]; e >= 0; e = nodes[e].next) nodes[e].passed_by = 1;
  }
  void Inserted(int e, bool prefetch) const {
    ArcNode& node = nodes[e];
    const uint8_t origin = node.list;
    if (origin != kArcNowhere) Unlink(e);
    const bool ghost = origin == kArcB1 || origin == kArcB2;
    const bool asked_for = node.missed != 0;
    node.missed = 0;
    if (prefetch && !asked_for) {
      node.origin = ghost ? origin : static_cast<uint8_t>(kArcNowhere);
      node.passed_by = 0;
      Append(e, kArcPrefetched);
    } else {
      Append(e, ghost ? kArcT2 : kArcT1);
    }
    TrimGhosts();
  }
  void Evicted(int e) const {
    const ArcNode node = nodes[e];
    if (node.list == kArcNowhere) return;
    Unlink(e);
    if (node.list == kArcT1) Append(e, kArcB1);
    if (node.list == kArcT2) Append(e, kArcB2);
    // An unused prefetch leaves no trace: it becomes the ghost that it was, the oldest one now.
    if (node.list == kArcPrefetched && node.origin != kArcNowhere) Prepend(e, node.origin);
    TrimGhosts();
  }
  /// The expert with `allowed` to leave for `incoming` (-1: for nobody); -1: none of them is known.
  /// REPLACE(x, p).
  int Victim(int incoming, const uint8_t* allowed) const {
    int e = First(kArcPrefetched, allowed, /*passed_by_only=*/true);
    if (e >= 0) return e;
    const bool from_b2 = incoming >= 0 && nodes[incoming].list == kArcB2;
    const double t1 = state->size[kArcT1];
    const bool shrink_t1 = t1 > 0 && (t1 > state->p || (from_b2 && t1 == state->p));
    e = First(shrink_t1 ? kArcT1 : kArcT2, allowed, false);
    if (e < 0) e = First(shrink_t1 ? kArcT2 : kArcT1, allowed, false);
    return e >= 0 ? e : First(kArcPrefetched, allowed, false);
  }

 private:
  void RequestOne(int e) const {
    ArcNode& node = nodes[e];
    switch (node.list) {
      case kArcT1:
      case kArcT2:  // Case I
        Unlink(e);
        Append(e, kArcT2);
        return;
      case kArcB1:
      case kArcB2:  // Cases II and III; it moves when it has come
        Adapt(node.list);
        node.missed = 1;
        return;
      case kArcPrefetched: {
        const uint8_t origin = node.origin;
        Unlink(e);
        if (origin != kArcNowhere) Adapt(origin);
        Append(e, origin == kArcNowhere ? kArcT1 : kArcT2);
        TrimGhosts();
        return;
      }
      default:
        node.missed = 1;
        return;
    }
  }
  void Unlink(int e) const {
    ArcNode& node = nodes[e];
    (node.previous >= 0 ? nodes[node.previous].next : state->head[node.list]) = node.next;
    (node.next >= 0 ? nodes[node.next].previous : state->tail[node.list]) = node.previous;
    --state->size[node.list];
    node.list = kArcNowhere;
  }
  void Link(int e, int list, int previous, int next) const {
    ArcNode& node = nodes[e];
    node.list = static_cast<uint8_t>(list);
    node.previous = previous;
    node.next = next;
    (previous >= 0 ? nodes[previous].next : state->head[list]) = e;
    (next >= 0 ? nodes[next].previous : state->tail[list]) = e;
    ++state->size[list];
  }
  /// As the most recent; of T1 and T2 behind those of the same call with more tokens.
  void Append(int e, int list) const {
    int before = state->tail[list];
    const bool by_tokens = counts != nullptr && (list == kArcT1 || list == kArcT2);
    while (by_tokens && before >= 0 && counts[e] > 0 && counts[before] > counts[e]) {
      before = nodes[before].previous;
    }
    Link(e, list, before, before >= 0 ? nodes[before].next : state->head[list]);
  }
  void Prepend(int e, int list) const { Link(e, list, -1, state->head[list]); }
  void Adapt(int ghost) const {
    const int other = ghost == kArcB1 ? kArcB2 : kArcB1;
    // The expert itself counts as a member of its list, also when a prefetch has taken it out.
    const double mine = state->size[ghost] > 1 ? state->size[ghost] : 1;
    const double ratio = state->size[other] / mine;
    const double step = ratio > 1 ? ratio : 1;
    const double p = ghost == kArcB1 ? state->p + step : state->p - step;
    state->p = p < 0 ? 0 : p > state->capacity ? state->capacity : p;
  }
  /// |T1| + |B1| <= c and |T1| + |T2| + |B1| + |B2| <= 2c, the oldest ghosts go.
  void TrimGhosts() const {
    const int32_t* size = state->size;
    const int c = state->capacity;
    // A layer over its capacity loses somebody soon, who may be a ghost then.
    if (size[kArcT1] + size[kArcT2] > c) return;
    while (size[kArcB1] > 0 && size[kArcT1] + size[kArcB1] > c) Unlink(state->head[kArcB1]);
    while (size[kArcT1] + size[kArcT2] + size[kArcB1] + size[kArcB2] > 2 * c) {
      Unlink(state->head[size[kArcB2] > 0 ? kArcB2 : kArcB1]);
    }
  }
  int First(int list, const uint8_t* allowed, bool passed_by_only) const {
    for (int e = state->head[list]; e >= 0; e = nodes[e].next) {
      if (allowed[e] != 0 && (!passed_by_only || nodes[e].passed_by != 0)) return e;
    }
    return -1;
  }
};

/// The lists of one layer, over experts [0, n).
class ArcLists {
 public:
  using List = ArcList;
  static constexpr List kNowhere = kArcNowhere, kT1 = kArcT1, kT2 = kArcT2, kB1 = kArcB1,
                        kB2 = kArcB2, kPrefetched = kArcPrefetched;

  ArcLists(int experts, int capacity);
  static constexpr int64_t kBytesPerExpert = sizeof(ArcNode) + 3 * sizeof(int32_t);

  void SetCapacity(int capacity) { lists().SetCapacity(capacity); }
  /// A layer call requested the experts with counts > 0.
  void Request(absl::Span<const int32_t> counts);
  void Inserted(int expert, bool prefetch) { lists().Inserted(expert, prefetch); }
  void Evicted(int expert) { lists().Evicted(expert); }
  /// The expert with `allowed` to leave for `incoming` (-1: for nobody); -1 if none is known here.
  int Victim(int incoming, const std::vector<uint8_t>& allowed) {
    return lists().Victim(incoming, allowed.data());
  }

  List list(int expert) const { return static_cast<List>(nodes_[expert].list); }
  int size(List list) const { return state_.size[list]; }
  /// Least recent first.
  std::vector<int> Contents(List list) const;
  double p() const { return state_.p; }

 private:
  ArcView lists() { return {&state_, nodes_.data(), counts_.data()}; }

  ArcState state_;
  std::vector<ArcNode> nodes_;
  std::vector<int32_t> counts_;  // of the last call
  std::vector<int32_t> order_;   // scratch
};

/// ARC in every layer, with the capacities of a rule. It is asked on the host. Victims among
/// several layers (a layer borrows) are the least recently used.
std::unique_ptr<ResidencyPolicy> MakeArc(const CapacityRule& capacity);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_ARC_H_
