// The arithmetic of layer calls on the CPU, on the caller's thread and its pool.
#ifndef MOERT_LIB_EXEC_CPU_CPU_EXECUTOR_H_
#define MOERT_LIB_EXEC_CPU_CPU_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "base/aligned_array.h"
#include "exec/backend.h"
#include "exec/executor.h"

namespace moert {

/// The buffers are sized once, for max_tokens rows.
class CpuExecutor final : public Executor, public ResidentForward {
 public:
  explicit CpuExecutor(const ExecutorParts& parts);

  absl::Status Route(const ExecutorCall& call, const RoutingRequest& request,
                     RoutingResult* routing) override;
  absl::Status SetRouting(const ExecutorCall& call, const RoutingResult& routing) override;
  absl::Status Multiply(const ExecutorCall& call, const RoutingResult& routing,
                        absl::Span<const ReadyExpert> experts, bool first) override;
  absl::Status Combine(const ExecutorCall& call, const RoutingResult& routing) override;

  ResidentForward* resident_forward() override { return parts_.partial_output ? this : nullptr; }
  PartialRows PartialOutput(const ExecutorCall& call, const RoutingResult& routing,
                            absl::Span<const uint8_t> computed) override;
  absl::Status ScoreNext(const ExecutorCall& call, bool filled,
                         std::vector<float>* scores) override;

 private:
  const MoeLayerSpec& Spec(const ExecutorCall& call) const {
    return parts_.source->model().layers[call.layer];
  }
  /// Fills weighted_x_: for each slot its token's row times the slot's weight, then all rows
  /// unweighted.
  void WeightInput(const ExecutorCall& call, const RoutingResult& routing);
  /// Adds the shared expert to the problems of a call of `pairs` slots.
  void AddShared(const ExecutorCall& call, int64_t pairs);
  /// Null: the layer has no shared expert, or the call leaves it out.
  const std::byte* SharedRecord(const ExecutorCall& call) const {
    return call.shared ? parts_.constants->shared_record(call.layer) : nullptr;
  }
  /// The factor of the shared expert's output for row t.
  float SharedWeight(const ExecutorCall& call, int64_t t) const;

  const ExecutorParts parts_;
  AlignedArray<float> x_, y_;    // [T, hidden]: input and output of a call
  AlignedArray<float> outputs_;  // [T * k + T, hidden]: of routed experts by slot, then shared ones
  AlignedArray<float> weighted_x_;            // inputs, as outputs_; empty without weight_input
  AlignedArray<float> partial_, next_input_;  // [T, hidden]; empty without partial_output
  std::vector<int32_t> all_tokens_, shared_rows_;
  std::vector<ExpertProblem> problems_;
};

/// Bytes that the executor's calls take in addition to the expert pools. `io_threads`: threads that
/// read records into scratch memory of the source.
int64_t CpuWorkspaceBytes(const ExecutorSize& size, int io_threads);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_CPU_CPU_EXECUTOR_H_
