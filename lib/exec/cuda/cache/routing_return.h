// Brings a routing made on the device to the host: at once for a call that waits for it, or late
// for the counters and policies.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_ROUTING_RETURN_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_ROUTING_RETURN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "exec/cuda/cache/device_rule.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/late_copy.h"
#include "exec/cuda/workspace.h"
#include "exec/executor.h"
#include "kernels/cuda/device_types.h"
#include "moert/model.h"
#include "moert/policy.h"
#include "moert/router.h"

namespace moert::cuda {

/// Brings the selections of captured calls to the host. The graph's kernels count them in device
/// memory (SelectionTally in kernels/cuda/device_types.h), and the counts are copied behind each
/// step. One caller at a time.
class SelectionReturn {
 public:
  /// `tally`: [rows] in device memory, borrowed; Init sets it to zero.
  absl::Status Init(SelectionTally* tally, int64_t rows);
  /// See LateCopy::Bring.
  absl::Status Bring(cudaStream_t stream) { return copy_.Bring(stream); }
  /// *added: [rows], the counts added since the last call. False: none, or not arrived yet.
  bool Take(std::vector<SelectionCount>* added);

 private:
  LateCopy copy_;
  std::vector<SelectionTally> seen_;  // [rows]
};

/// The layout of a routing in host memory: the addresses of its parts in a mirror that begins at
/// `at`.
struct RoutingMirror {
  int32_t* ids;
  float* weights;
  float* scores;
  float* next_scores;
  int64_t pairs, num_scores, num_next_scores;  // elements; num_next_scores is 0 without a next gate

  RoutingMirror(const MoeModelSpec& model, int layer, int64_t tokens, bool next_gate,
                std::byte* at);
  /// Bytes of the largest mirror of up to `tokens` rows.
  static int64_t Bytes(const Extent& extent, int64_t tokens);
  /// Fills *routing, with its tokens grouped by expert.
  void Read(const MoeModelSpec& model, int layer, int64_t tokens, RoutingResult* routing) const;
};

/// One caller at a time.
class RoutingReturn {
 public:
  RoutingReturn() = default;
  ~RoutingReturn();
  RoutingReturn(const RoutingReturn&) = delete;
  RoutingReturn& operator=(const RoutingReturn&) = delete;

  /// `model` is borrowed.
  absl::Status Init(const MoeModelSpec* model, const Extent& extent);

  /// The pinned memory in which the rule leaves its results for the next Bring (`late`: BringLate).
  RuleMirror RuleOf(bool late);
  /// Enqueues copies of the routing that `w` holds for `tokens` tokens of a layer; with `next_gate`
  /// also of the next layer's scores. `ruled`: the rule filled its mirror.
  absl::Status Bring(const Workspace& w, int layer, int64_t tokens, bool next_gate, bool ruled,
                     cudaStream_t stream);
  /// Blocks until the last Bring has arrived, and fills *routing, with its tokens grouped by
  /// expert.
  absl::Status Wait(RoutingResult* routing);

  /// As Bring, for a routing that no call waits for. It is dropped when too many are on their way.
  /// `given`: the host made the routing, so there are no scores.
  absl::Status BringLate(const Workspace& w, const PolicyContext& context, int64_t tokens,
                         bool ruled, cudaStream_t stream, bool given = false);
  /// The oldest routing of BringLate that has arrived and was not taken yet; false: none.
  bool Take(PolicyContext* context, RoutingResult* routing);

  /// The largest substituted shares that any request reached, as far as reports have arrived.
  double worst_slot_share() const { return worst_slot_share_; }
  double worst_mass_share() const { return worst_mass_share_; }

 private:
  struct Mirror {
    PolicyContext context;
    int64_t tokens = 0;
    bool next_gate = false;
    bool ruled = false;
    bool given = false;
    std::byte* at = nullptr;  // pinned
    RuleMirror rule;          // pinned
    cudaEvent_t arrived = nullptr;
  };

  absl::Status Enqueue(const Workspace& w, Mirror* mirror, cudaStream_t stream) const;
  RoutingMirror At(const Mirror& m) const {
    return {*model_, m.context.layer, m.tokens, m.next_gate, m.at};
  }
  void Read(const Mirror& mirror, RoutingResult* routing);
  /// Adds the rule's results from its mirror to a routing that was read.
  void ReadRule(const RuleMirror& rule, RoutingResult* routing);

  const MoeModelSpec* model_ = nullptr;
  Buffer memory_;
  Mirror awaited_;
  std::vector<Mirror> late_;  // a ring
  size_t first_ = 0, count_ = 0;
  double worst_slot_share_ = 0, worst_mass_share_ = 0;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_ROUTING_RETURN_H_
