// The expert-cache router rule for calls that are routed on the device: which rules the device
// executes, and the per-request accounts in device memory. Low answers use these accounts too.
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

/// Pinned memory in which a call leaves the rule's results for the host.
struct RuleMirror {
  int32_t* own_ids = nullptr;  // the model's own choice
  float* own_weights = nullptr;
  ExpertCacheReport* report = nullptr;

  static RuleMirror Carve(int64_t pairs, Carver* c) {
    return {c->Take<int32_t>(pairs), c->Take<float>(pairs), c->Take<ExpertCacheReport>(1)};
  }
};

/// One caller at a time. The caller orders its streams one behind the other.
class DeviceRule {
 public:
  explicit DeviceRule(int64_t max_tokens);

  /// Whether the device executes `rule` in this layer: it must be the expert-cache rule, and the
  /// layer's routing must have scores and up to kFewExperts experts.
  static bool Executes(const MoeLayerSpec& layer, const RoutingRule& rule);
  /// Whether the device can execute the rule in captured calls of the layer, whatever its numbers.
  static bool Serves(const MoeLayerSpec& layer);

  /// `buffers` are borrowed, for calls of up to `max_tokens`.
  absl::Status Init(const RuleBuffers& buffers, int64_t max_tokens);

  /// Called after LaunchTopK: replaces w.ids and w.weights of `tokens` tokens by the rule's choice,
  /// given the experts that `handles` shows as resident. request_ids: [tokens] or empty.
  absl::Status Run(const Workspace& w, const DeviceRouting& routing, int64_t tokens,
                   const RoutingRule& rule, absl::Span<const int64_t> request_ids,
                   const ExpertHandle* handles, const RuleMirror& mirror, cudaStream_t stream);

  /// The arguments that do the same in a capture, for a layer whose misses the device serves. The
  /// rows of a replay belong to the requests of the step that it lies in.
  static ExpertCacheArgs OfCapture(const Workspace& w, const DeviceRouting& routing, int64_t tokens,
                                   const RoutingRule& rule, const ServedResidents& residents);
  /// Begins a step of replays. request_ids: the request of each row; empty: all rows are one
  /// request's.
  absl::Status BeginStep(const RuleBuffers& buffers, absl::Span<const int64_t> request_ids,
                         int64_t max_tokens, cudaStream_t stream);
  /// Launches the kernels once. The first launch loads a kernel, which is not possible in a
  /// capture.
  static absl::Status Load(const Workspace& w, const DeviceRouting& routing, cudaStream_t stream);
  /// The same for the kernel of the accounts alone.
  static absl::Status LoadAccounts(const Workspace& w, cudaStream_t stream);

 private:
  absl::Status SetRows(const RuleBuffers& buffers, absl::Span<const int64_t> request_ids,
                       cudaStream_t stream);

  RequestSlots requests_;
  std::vector<int64_t> rows_;  // request ids that account_of on the device stands for
  std::vector<int32_t> slot_;
  std::vector<uint8_t> fresh_;
  bool one_row_each_ = false;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_DEVICE_RULE_H_
