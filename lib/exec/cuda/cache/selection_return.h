// How the selections of captured calls come to the host. A graph's own kernels count them in device
// memory (SelectionTally in kernels/cuda/device_types.h), and the counts follow behind each step.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_SELECTION_RETURN_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_SELECTION_RETURN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "exec/cuda/memory/late_copy.h"
#include "exec/executor.h"
#include "kernels/cuda/device_types.h"

namespace moert::cuda {

/// One caller at a time.
class SelectionReturn {
 public:
  /// `tally`: [rows] in device memory, borrowed; set to nothing.
  absl::Status Init(SelectionTally* tally, int64_t rows);
  /// See LateCopy::Bring.
  absl::Status Bring(cudaStream_t stream) { return copy_.Bring(stream); }
  /// [rows], what was added since it was last asked; false: nothing, or it has not arrived.
  bool Take(std::vector<SelectionCount>* added);

 private:
  LateCopy copy_;
  std::vector<SelectionTally> seen_;  // [rows]
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_SELECTION_RETURN_H_
