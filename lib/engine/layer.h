// One MoE layer call, and the objects it passes through.
#ifndef MOERT_LIB_ENGINE_LAYER_H_
#define MOERT_LIB_ENGINE_LAYER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/aligned.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "moert/expert_source.h"
#include "moert/expert_store.h"
#include "moert/mixed_group_gemm.h"
#include "moert/policy.h"
#include "moert/prefetcher.h"
#include "moert/router.h"
#include "moert/scheduler.h"
#include "moert/strategy.h"

namespace moert {

/// Everything a layer call uses. Borrowed from the engine.
struct LayerParts {
  const MoeModelSpec* model = nullptr;
  const HardwareProfile* profile = nullptr;
  const std::vector<LayerConstants>* constants = nullptr;
  // [L] shared expert records, 64-byte aligned as the kernels need them; null where there is none.
  std::vector<const std::byte*> shared_records;
  Strategy* strategy = nullptr;
  ResidencyPolicy* residency = nullptr;  // the strategy's, or the default
  Router* router = nullptr;
  ExpertStore* store = nullptr;
  Prefetcher* prefetcher = nullptr;
  Scheduler* scheduler = nullptr;
  MixedGroupGemm* gemm = nullptr;
  ThreadPool* pool = nullptr;
  Clock* clock = nullptr;
  VirtualClock* virtual_clock = nullptr;  // null on the wall clock
  EngineStats* stats = nullptr;
};

/// Runs layer calls, one at a time. Its workspace is sized once for max_tokens rows.
class LayerRunner {
 public:
  LayerRunner(const LayerParts& parts, int64_t max_tokens);

  /// x, out: [tokens, hidden] fp32, contiguous; out may be x. context.layer says which layer.
  absl::Status Forward(PolicyContext context, const float* x, int64_t tokens, float* out);

  /// Bytes of workspace for max_tokens rows of any layer, MixedGroupGemm's own excluded.
  static int64_t WorkspaceBytes(const MoeModelSpec& model, int64_t max_tokens);

 private:
  absl::Status Route(const PolicyContext& context, const float* x, int64_t tokens);
  void Plan(const PolicyContext& context);
  absl::Status FetchAndMultiply(const PolicyContext& context, const float* x, int64_t tokens);
  void Combine(int layer, const float* x, int64_t tokens, float* out);

  absl::Status Multiply(const PolicyContext& context, const float* x, int64_t tokens, bool first);
  absl::Status CollectArrived(const PolicyContext& context);
  void CountStall(int64_t begin_ns, int layer);

  const LayerParts parts_;
  RoutingResult routing_;
  LayerPlan plan_;
  std::vector<int32_t> wave_;    // experts ready to be multiplied, pinned
  std::vector<int32_t> flying_;  // experts on their way
  std::vector<ExpertProblem> problems_;
  std::vector<int32_t> all_tokens_;
  std::vector<int32_t> shared_rows_;
  AlignedBuffer<float> slots_;  // [T * k + T, hidden]: routed outputs by slot, then shared ones
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_LAYER_H_
