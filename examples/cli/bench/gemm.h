// moert-bench gemm: its options, and its halves for CPU and device.
#ifndef MOERT_EXAMPLES_CLI_BENCH_GEMM_H_
#define MOERT_EXAMPLES_CLI_BENCH_GEMM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/scheme.h"

namespace moert::cli {

struct GemmOptions {
  std::string backend = "cpu";
  std::string kernels = "all";
  std::string numerics = "bf16";
  std::string schemes = "bf16";
  int hidden = 2048;
  int intermediate = 768;
  int experts_per_call = 8;
  std::vector<int> tokens = {1, 2, 4, 8, 32, 128};
  int64_t bytes = int64_t{512} << 20;
  std::vector<int> batch;
  int experts = 128;
  int used = 8;
  int threads = 0;
  int repeats = 7;
  std::string clock = "wall";
  std::string shapes = "qwen3-30b,mixtral";
  std::string zipf = "0,0.8";
  std::string plans;
  int layers = 8;
  bool hadamard = false;
  std::string rows = "bf16";
  std::string products = "auto";
  std::string json, plot;
  bool quiet = false;
};

/// The schemes that --schemes names.
absl::StatusOr<std::vector<Scheme>> SchemesOf(const GemmOptions& options);

/// Measures, prints the table and writes the figures.
absl::Status RunGemmOnCpu(const GemmOptions& options, const std::string& command);
absl::Status RunGemmOnDevice(const GemmOptions& options, const std::string& command);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_GEMM_H_
