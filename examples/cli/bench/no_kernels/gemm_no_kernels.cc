// A moert-bench that is not linked with the library's kernels (examples/CMakeLists.txt).
#include "cli/bench/gemm_cuda.h"

namespace moert::cli {

absl::Status BenchGemmCuda(const GemmCudaOptions&, nlohmann::json*,
                           const std::function<void(const GemmCudaCase&)>&) {
  return absl::UnavailableError(
      "this moert-bench cannot measure single kernels of a device: libmoert's own build makes one "
      "that can, with -DMOERT_CUDA=ON; --backend cpu works here");
}

}  // namespace moert::cli
