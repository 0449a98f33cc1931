// The expert-cache router rule of calls that are routed on the device: which rules it executes, and
// the accounts of the requests there, which low answers go by too.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_DEVICE_RULE_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_DEVICE_RULE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/workspace.h"
#include "kernels/cuda/route/expert_cache.h"
#include "moert/policy.h"
#include "route/request_slots.h"

namespace moert::cuda {

/// Where the host wants to find what it learns of a call: pinned memory.
struct RuleMirror {
  int32_t* own_ids = nullptr;  // the model's choice
  float* own_weights = nullptr;
  ExpertCacheReport* report = nullptr;

  static RuleMirror Carve(int64_t pairs, Carver* c) {
    return {c->Take<int32_t>(pairs), c->Take<float>(pairs), c->Take<ExpertCacheReport>(1)};
  }
};

/// One caller at a time, one stream after the other.
class DeviceRule {
 public:
  explicit DeviceRule(int64_t max_tokens);

  /// The expert-cache rule, on routing kinds that have scores, of up to kFewExperts experts.
  static bool Executes(const MoeLayerSpec& layer, const RoutingRule& rule);
  /// Whether it may in captured calls, whatever the rule's numbers.
  static bool Serves(const MoeLayerSpec& layer);

  /// `buffers` are borrowed, for calls of up to `max_tokens`.
  absl::Status Init(const RuleBuffers& buffers, int64_t max_tokens);

  /// Behind LaunchTopK: turns w.ids and w.weights of `tokens` tokens into the rule's, on what
  /// `handles` says is resident. request_ids: [tokens] or empty.
  absl::Status Run(const Workspace& w, const DeviceRouting& routing, int64_t tokens,
                   const RoutingRule& rule, absl::Span<const int64_t> request_ids,
                   const ExpertHandle* handles, const RuleMirror& mirror, cudaStream_t stream);

  /// Does the same in a capture, for a layer whose misses the device serves. A replay's rows
  /// are of the requests of its own step.
  static ExpertCacheArgs OfCapture(const Workspace& w, const DeviceRouting& routing, int64_t tokens,
                                   const RoutingRule& rule, const ServedResidents& residents);
  /// Begins a step, for replays: whose its rows are; empty: all are one request's.
  absl::Status BeginStep(const RuleBuffers& buffers, absl::Span<const int64_t> request_ids,
                         int64_t max_tokens, cudaStream_t stream);
  /// A kernel's first launch loads it, which is not possible in a capture.
  static absl::Status Load(const Workspace& w, const DeviceRouting& routing, cudaStream_t stream);
  /// The same of the accounts alone.
  static absl::Status LoadAccounts(const Workspace& w, cudaStream_t stream);

 private:
  absl::Status SetRows(const RuleBuffers& buffers, absl::Span<const int64_t> request_ids,
                       cudaStream_t stream);

  RequestSlots requests_;
  std::vector<int64_t> rows_;  // whose accounts account_of names on the device
  std::vector<int32_t> slot_;
  std::vector<uint8_t> fresh_;
  bool one_row_each_ = false;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_DEVICE_RULE_H_
