// A build without CUDA.
#include "cli/bench/probe_cuda.h"

namespace moert::cli {

absl::StatusOr<CudaProbe> ProbeCuda(const Shape&, const std::vector<int>&, int) {
  return absl::UnavailableError("built without CUDA");
}

}  // namespace moert::cli
