// Grouped products on random experts, layer after layer in a CUDA graph. Every layer has weights of
// its own, together many times the second-level cache, and a routing of its own.
#include "cli/bench/gemm_cuda.h"

#include <memory>

#include "base/status_macros.h"
#include "bench/gemm_bench.h"
#include "exec/backend.h"
#include "exec/cuda/cuda_api.h"
#include "fmt/format.h"

namespace moert::cli {

absl::Status BenchGemmCuda(const GemmCudaOptions& options, nlohmann::json* machine,
                           const std::function<void(const GemmCudaCase&)>& done) {
  const absl::Status available = CudaStatus();
  if (!available.ok()) return absl::UnavailableError(available.message());
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;
  MOERT_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, 0));
  MOERT_CUDA_RETURN_IF_ERROR(cudaDriverGetVersion(&driver));
  MOERT_CUDA_RETURN_IF_ERROR(cudaRuntimeGetVersion(&runtime));
  (*machine)["device"] = properties.name;
  (*machine)["cuda_driver"] = fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
  (*machine)["cuda_runtime"] = fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10);
  MOERT_ASSIGN_OR_RETURN(const Buffer copied, Buffer::Device(2 * kCopyBytes));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemset(copied.data(), 1, 2 * kCopyBytes));
  for (const Shape& shape : options.shapes) {
    for (const PackVersion& version : options.versions) {
      GemmBench bench(shape.spec.layers.front(), options);
      MOERT_RETURN_IF_ERROR(bench.Init(version, copied));
      for (const int tokens : options.tokens) {
        for (const double zipf : options.zipf) {
          GemmCudaCase result;
          result.shape = shape.name;
          result.scheme = version.name;
          MOERT_RETURN_IF_ERROR(bench.Measure(tokens, zipf, &result));
          done(result);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace moert::cli
