// Whole steps recorded as CUDA graphs, by shape.
#ifndef MOERT_EXAMPLES_HOST_CUDA_STEP_GRAPHS_H_
#define MOERT_EXAMPLES_HOST_CUDA_STEP_GRAPHS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace moert::host {

class StepGraphs {
 public:
  using Shape = std::pair<int64_t, int>;  // rows, pieces of attention

  StepGraphs() = default;
  ~StepGraphs() { Clear(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// Null if the shape was not recorded.
  cudaGraphExec_t Find(Shape shape) const;
  /// Counts an eager step of this shape. True from the second one on: a shape that occurs once is
  /// not worth recording.
  bool Worth(Shape shape) { return ++seen_[shape] >= 2; }
  /// Records the work that `enqueue` enqueues on the stream, without running it. All of it must
  /// have run once before: a first launch may load code, which is not allowed in a recording.
  absl::Status Record(Shape shape, cudaStream_t stream, absl::FunctionRef<absl::Status()> enqueue);
  /// Forgets all graphs; none may be running.
  void Clear();

 private:
  // More shapes than a host has batch sizes. When there are as many, all graphs are dropped.
  static constexpr size_t kMaxGraphs = 64;

  std::map<Shape, int> seen_;
  std::map<Shape, cudaGraphExec_t> graphs_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_STEP_GRAPHS_H_
