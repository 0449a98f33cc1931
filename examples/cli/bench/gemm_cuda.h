// The device's part of moert-bench gemm: the grouped products of a layer, weights read from device
// memory.
#ifndef MOERT_EXAMPLES_CLI_BENCH_GEMM_CUDA_H_
#define MOERT_EXAMPLES_CLI_BENCH_GEMM_CUDA_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/common/report.h"
#include "cli/workload/shapes.h"
#include "moert/offline/pack.h"

namespace moert::cli {

struct GemmCudaOptions {
  std::vector<Shape> shapes;
  std::vector<PackVersion> versions;  // copy l of the layer is as a version's layer l, in turn
  std::vector<int> tokens;            // of a layer call
  std::vector<double> zipf;           // exponents of the experts' popularity; 0: all alike
  int layers = 8;                     // copies of the weights, in turn
  int repeats = 21;
  bool f32_rows = false;          // hidden states and outputs in fp32 instead of bf16
  bool fp8 = false;               // ActivationNumerics::kFp8
  std::string products = "auto";  // or few, prompts: whose kernels, whatever the tokens
};

/// One layer call, in microseconds.
struct GemmCudaCase {
  std::string shape;
  std::string scheme;
  int tokens = 0;
  double zipf = 0;
  double experts = 0;  // experts that have a token, mean of the layers
  double bytes = 0;    // of their records
  double flops = 0;
  Spread copy_gbps;  // device memory to itself, read + written, between the measurements
  Spread products;   // gate, up, down (and what packs h between them)
  Spread layer;      // with routing, grouping, packing, weighted sum
};

/// Measures every combination and calls `done` after each. Unavailable, with the reason, where
/// there is no device or no CUDA in the build. `machine`: the device and its software.
absl::Status BenchGemmCuda(const GemmCudaOptions& options, nlohmann::json* machine,
                           const std::function<void(const GemmCudaCase&)>& done);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_GEMM_CUDA_H_
