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

/// The lists of one layer, over experts [0, n). A call takes a few steps for every expert that it
/// requests, brings or lets go.
class ArcLists {
 public:
  enum List : uint8_t { kNowhere, kT1, kT2, kB1, kB2, kPrefetched, kLists };

  ArcLists(int experts, int capacity);

  void SetCapacity(int capacity);
  /// A layer call requested the experts with counts > 0.
  void Request(absl::Span<const int32_t> counts);
  void Inserted(int expert, bool prefetch);
  void Evicted(int expert);
  /// The expert with `allowed` to leave for `incoming` (-1: for nobody); -1 if none is known here.
  /// REPLACE(x, p).
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
  /// As the most recent; of T1 and T2 behind those of the same call with more tokens.
  void Append(int e, List list);
  void Adapt(List ghost);
  void TrimGhosts();
  int First(List list, const std::vector<uint8_t>& allowed, bool passed_by_only) const;

  int capacity_;
  double p_ = 0;  // the size that T1 aims at
  int32_t head_[kLists] = {-1, -1, -1, -1, -1, -1};
  int32_t tail_[kLists] = {-1, -1, -1, -1, -1, -1};
  int32_t size_[kLists] = {};
  std::vector<Node> nodes_;
  std::vector<int32_t> counts_;  // tokens of the last call
  std::vector<int32_t> order_;   // scratch
};

/// ARC in every layer, with the capacities of a rule. It is asked on the host. Victims among
/// several layers (a layer borrows) are the least recently used.
std::unique_ptr<ResidencyPolicy> MakeArc(const CapacityRule& capacity);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_ARC_H_
