// The branches of a captured call that run beside its main products: (1) copies of the missing
// records, followed by the products of these experts; (2) the experts that the CPU computes; (3)
// the prediction for the next layer, unless the decision kernel makes it; (4) the prefetch that the
// prediction asks for.
//
// All branches but the prefetch are joined before the call ends. The prefetch is a graph node that
// no stream waits for: it runs on while the host's kernels run, and the next call's copies depend
// on it. So a graph of a few layers is complete as well: it ends when its last prefetch ends.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_COPY_BRANCH_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_COPY_BRANCH_H_

#include "absl/status/status.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/cache/served_prefetch.h"

namespace moert::cuda {

/// One caller at a time; captured calls only.
class CopyBranch {
 public:
  CopyBranch() = default;
  ~CopyBranch();
  CopyBranch(const CopyBranch&) = delete;
  CopyBranch& operator=(const CopyBranch&) = delete;

  absl::Status Init();

  /// Forks the prediction, after the work of `stream`. `list`: the list that the prediction writes.
  /// Needs a Join.
  absl::Status ForkPrediction(cudaStream_t stream, const LayerPrefetch* list);
  /// Forks copies, after the last prefetch. Needs a Join.
  absl::Status ForkCopies(cudaStream_t stream);
  cudaStream_t copies() const { return copies_; }
  /// Forks the branch that waits for the CPU. Needs a Join.
  absl::Status ForkCpu(cudaStream_t stream);
  cudaStream_t cpu() const { return cpu_; }
  cudaStream_t predictions() const { return predictions_; }
  /// Whether the last prefetch reads the list and no copies have been ordered behind it yet.
  bool Reads(const LayerPrefetch* list) const { return prefetch_ != nullptr && list_ == list; }
  /// Adds the prefetch behind the copies, and behind the prediction if that was forked.
  absl::Status Prefetch(LayerPrefetch* prefetch);
  /// Makes `stream` wait for the forked copies.
  absl::Status JoinCopies(cudaStream_t stream);
  /// Makes `stream` wait for the forked branches: copies, CPU and prediction.
  absl::Status Join(cudaStream_t stream);

 private:
  absl::Status StandBehindPrefetch(cudaStream_t stream);

  cudaStream_t copies_ = nullptr;
  cudaStream_t cpu_ = nullptr;
  cudaStream_t predictions_ = nullptr;
  cudaEvent_t forked_ = nullptr, forked_cpu_ = nullptr, forked_prediction_ = nullptr;
  cudaEvent_t copied_ = nullptr, computed_ = nullptr, predicted_ = nullptr;
  // Forked since the last Join.
  bool copies_forked_ = false, cpu_forked_ = false, prediction_forked_ = false;
  cudaGraphNode_t prefetch_ = nullptr;   // the last prefetch; null: none
  const LayerPrefetch* list_ = nullptr;  // the list that it reads
  unsigned long long capture_ = 0;       // id of the capture that it belongs to
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_COPY_BRANCH_H_
