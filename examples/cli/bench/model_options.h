// The flags of moert-bench decode, prefill and layer.
#ifndef MOERT_EXAMPLES_CLI_BENCH_MODEL_OPTIONS_H_
#define MOERT_EXAMPLES_CLI_BENCH_MODEL_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/common/args.h"
#include "moert/options.h"

namespace moert::cli {

struct ModelBenchOptions {
  std::string bench;  // "decode", "prefill", "layer"
  std::string synthetic;
  std::string workload = "steady";
  std::string strategy = "on-demand";
  std::string budget = "40%";
  std::string host_budget;
  std::string schemes = "bf16";
  int mixed = 0;
  std::string mixed_schemes;
  std::string costs;
  std::string directory;
  std::vector<int> batch = {1};
  int64_t prompt = 128;
  int64_t steps = 32;
  int64_t repeats = 5;
  int64_t warm = 64;
  std::string backend = "cpu";
  int64_t context = 1024;
  bool graph = false;
  bool layer_times = false;
  int threads = 0;
  int io_threads = 2;
  double link_gbps = 0;
  double attention_us = -1;
  std::string kernels = "auto";
  std::string clock = "wall";
  std::string profile = "reference";
  std::string trace;
  int64_t memory = 0;
  int64_t seed = 1;
  std::string json, plot;
  bool quiet = false;

  bool prefill() const { return bench == "prefill"; }
  bool on_device() const { return backend == "cuda"; }
};

/// Registers the flags that `options->bench` takes; borrowed until parsed.
void AddModelBenchFlags(ArgParser* parser, ModelBenchOptions* options);

/// The common part of all engines of a run; budget, strategy and steps are set beside it.
absl::StatusOr<EngineOptions> MakeEngineOptions(const ModelBenchOptions& options);

/// One `SPEC[@BUDGET]` of --strategy.
struct StrategyChoice {
  std::string spec;
  std::string budget;  // empty: the run's
};
absl::StatusOr<std::vector<StrategyChoice>> ParseStrategies(const std::string& text);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_MODEL_OPTIONS_H_
