// ARC: the adaptive replacement cache of Megiddo and Modha (FAST 2003), one a layer (Fate
// Sec. 4.4), as a residency policy that any strategy may use.
//
// T1 holds experts requested once since they came, T2 those requested again; B1 and B2 (the ghost
// lists) remember experts that left T1 and T2. p, the target size of T1, grows when an expert of B1
// is requested again (T1 was too small) and shrinks for one of B2. With one request per layer call,
// no prefetch and every block belonging to some layer this is the published algorithm, request by
// request. The engine differs from a page cache as follows:
//   - a layer call requests several experts at once: they count as requested in ascending number of
//     tokens, so that the most popular are the most recent;
//   - experts in use are not candidates: the replacement takes the best of those that are;
//   - a prefetch is not a request. A prefetched expert waits in a list of its own and remembers the
//     ghost list in which it was found. When it is first used, it enters T1 or T2 as the miss that
//     it would have been. If the routing that it was meant for does not use it, it is the first to
//     leave. If it arrives after the routing has asked for it, it counts as a miss;
//   - a layer may be over its capacity until its call ends, and an expert may be evicted for
//   another
//     layer: the lists follow what happened.
#ifndef MOERT_LIB_STRATEGIES_ARC_H_
#define MOERT_LIB_STRATEGIES_ARC_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "moert/policy.h"
#include "store/residency/capacity.h"

namespace moert {

/// The lists of one layer, over experts [0, n). A call takes constant time for every expert that it
/// requests, inserts or evicts.
class ArcLists {
 public:
  enum List : uint8_t { kNowhere, kT1, kT2, kB1, kB2, kPrefetched, kLists };

  ArcLists(int experts, int capacity);

  void SetCapacity(int capacity);
  /// Reports that a layer call requested the experts with counts > 0.
  void Request(absl::Span<const int32_t> counts);
  void Inserted(int expert, bool prefetch);
  void Evicted(int expert);
  /// REPLACE(x, p): the expert to evict for `incoming` (-1: for no expert), among those with
  /// `allowed`; -1 if the lists have none of these.
  int Victim(int incoming, const std::vector<uint8_t>& allowed) const;

  List list(int expert) const { return nodes_[expert].list; }
  int size(List list) const { return size_[list]; }
  /// Least recent first.
  std::vector<int> Contents(List list) const;
  double p() const { return p_; }

 private:
  struct Node {
    int32_t previous = -1, next = -1;  // in its list, least recent first
    List list = kNowhere;
    List origin = kNowhere;  // kPrefetched: the ghost list it came from
    bool passed_by = false;  // kPrefetched: a routing came and did not use it
    bool missed = false;     // the running call asked for it and found nothing
  };

 public:
  static constexpr int64_t kBytesPerExpert = sizeof(Node) + 3 * sizeof(int32_t);

 private:
  void RequestOne(int e);
  void Unlink(int e);
  void Link(int e, List list, int previous, int next);
  /// Appends as the most recent; in T1 and T2 less recent than experts of the same call with more
  /// tokens.
  void Append(int e, List list);
  void Adapt(List ghost);
  void TrimGhosts();
  int First(List list, const std::vector<uint8_t>& allowed, bool passed_by_only) const;

  int capacity_;
  double p_ = 0;  // target size of T1
  int32_t head_[kLists] = {-1, -1, -1, -1, -1, -1};
  int32_t tail_[kLists] = {-1, -1, -1, -1, -1, -1};
  int32_t size_[kLists] = {};
  std::vector<Node> nodes_;
  std::vector<int32_t> counts_;  // tokens of the last call
  std::vector<int32_t> order_;   // scratch
};

/// ARC in every layer, with the capacities of a rule. It only works on the host, as it has no
/// residency rule. If a layer borrows a slot from other layers, the victim is the least recently
/// used expert.
std::unique_ptr<ResidencyPolicy> MakeArc(const CapacityRule& capacity);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_ARC_H_
