// Branches of a captured call, beside its products: the copies of what it misses and the products
// of that, what the CPU computes of it, the prediction of what the next layer will want where the
// decision does not make it, and the prefetch of it.
//
// All but the prefetch are joined before the call ends. The prefetch is a node of the graph that
// no stream waits for: it goes on while the host's kernels run, and the next call's copies stand
// behind it. So a graph of some layers alone is whole, too: it ends when its last prefetch does.
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

  /// Forks the prediction, after the work of `stream`. `list`: what it writes. Needs a Join.
  absl::Status ForkPrediction(cudaStream_t stream, const LayerPrefetch* list);
  /// Forks copies, after the last prefetch. Needs a Join.
  absl::Status ForkCopies(cudaStream_t stream);
  cudaStream_t copies() const { return copies_; }
  /// Forks what waits for the CPU. Needs a Join.
  absl::Status ForkCpu(cudaStream_t stream);
  cudaStream_t cpu() const { return cpu_; }
  cudaStream_t predictions() const { return predictions_; }
  /// Whether a prefetch that no copies stand behind yet reads the list.
  bool Reads(const LayerPrefetch* list) const { return prefetch_ != nullptr && list_ == list; }
  /// Behind the copies, and the prediction where it was forked.
  absl::Status Prefetch(LayerPrefetch* prefetch);
  /// `stream` goes on behind the copies, the CPU and the prediction, those that were forked.
  absl::Status Join(cudaStream_t stream);

 private:
  absl::Status StandBehindPrefetch(cudaStream_t stream);

  cudaStream_t copies_ = nullptr;
  cudaStream_t cpu_ = nullptr;
  cudaStream_t predictions_ = nullptr;
  cudaEvent_t forked_ = nullptr, forked_cpu_ = nullptr, forked_prediction_ = nullptr;
  cudaEvent_t copied_ = nullptr, computed_ = nullptr, predicted_ = nullptr;
  // Since the last Join.
  bool copies_forked_ = false, cpu_forked_ = false, prediction_forked_ = false;
  cudaGraphNode_t prefetch_ = nullptr;   // the last one; null: none
  const LayerPrefetch* list_ = nullptr;  // that it reads
  unsigned long long capture_ = 0;       // that it is in
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_COPY_BRANCH_H_
