// How the selections of captured calls come to the host. A graph's own kernels count them in device
// memory (SelectionTally in kernels/cuda/device_types.h); behind a step, on a stream beside it, the
// counts are copied and nobody waits. The copy may see some of what the next step has begun to
// count; since the host takes differences, everything is counted once.
#ifndef MOERT_LIB_EXEC_CUDA_SELECTION_RETURN_H_
#define MOERT_LIB_EXEC_CUDA_SELECTION_RETURN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "exec/cuda/cuda_api.h"
#include "exec/executor.h"
#include "kernels/cuda/device_types.h"

namespace moert::cuda {

/// One caller at a time.
class SelectionReturn {
 public:
  SelectionReturn() = default;
  ~SelectionReturn();
  SelectionReturn(const SelectionReturn&) = delete;
  SelectionReturn& operator=(const SelectionReturn&) = delete;

  /// `tally`: [rows] in device memory, borrowed; set to nothing.
  absl::Status Init(SelectionTally* tally, int64_t rows);
  /// Enqueues a copy behind what `stream` was given so far, unless the last one was not taken: then
  /// the next one brings what this would have.
  absl::Status Bring(cudaStream_t stream);
  /// [rows], what was added since it was last asked; false: nothing, or it has not arrived.
  bool Take(std::vector<SelectionCount>* added);

 private:
  SelectionTally* tally_ = nullptr;
  Buffer memory_;                     // pinned
  std::vector<SelectionTally> seen_;  // [rows]
  cudaStream_t beside_ = nullptr;
  cudaEvent_t counted_ = nullptr;
  cudaEvent_t arrived_ = nullptr;
  bool under_way_ = false;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_SELECTION_RETURN_H_
