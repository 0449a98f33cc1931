// The request and the result of moert-bench probe, and the profile that follows.
#ifndef MOERT_EXAMPLES_CLI_BENCH_PROBE_PROFILE_H_
#define MOERT_EXAMPLES_CLI_BENCH_PROBE_PROFILE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/probe_cuda.h"
#include "cli/probe/parts.h"

namespace moert::cli {

struct ProbeOptions {
  std::string directory;
  int64_t file_bytes = int64_t{1} << 30;
  std::string link = "disk";
  std::string backend = "auto";
  int threads = 0;
  int io_threads = 2;
  double link_gbps = 0;
  std::string shape = "qwen3-30b";
  std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128};
  std::vector<int> device_tokens = {1, 2, 4, 8, 16, 32, 64, 256};
  std::vector<std::string> schemes = {"bf16"};
  double attention_us = 0;
  int repeats = 5;
  double seconds = 60;  // of all of it
  std::string name;
  std::string json;
  bool quiet = false;
};

struct Findings {
  nlohmann::json machine;
  int64_t pin_limit = 0;  // see PinLimit
  int threads = 0;        // of the pool
  MemoryRates memory;
  WakeTimes wake;
  std::vector<DiskRate> disk;
  std::vector<ComputeProbe> compute;  // some with the first scheme
  LayerOverhead layer;
  std::vector<std::string> missing;  // parts that were not measured
  absl::StatusOr<CudaProbe> device = absl::UnavailableError("not asked for");
};

/// The profile as --profile reads it.
nlohmann::json ProfileOf(const ProbeOptions& options, const std::string& command,
                         const Findings& findings);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_PROBE_PROFILE_H_
