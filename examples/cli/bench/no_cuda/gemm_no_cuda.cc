// A build without CUDA.
#include "examples/cli/bench/gemm_cuda.h"

namespace moert::cli {

absl::Status BenchGemmCuda(const GemmCudaOptions&, nlohmann::json*,
                           const std::function<void(const GemmCudaCase&)>&) {
  return absl::UnavailableError("built without CUDA");
}

}  // namespace moert::cli
