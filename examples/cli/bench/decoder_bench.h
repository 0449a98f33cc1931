// moert-bench model: the whole example decoder on a device, random weights at a published shape.
#ifndef MOERT_EXAMPLES_CLI_BENCH_DECODER_BENCH_H_
#define MOERT_EXAMPLES_CLI_BENCH_DECODER_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/workload/shapes.h"
#include "moert/offline/hf_config.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

struct DecoderBenchOptions {
  std::string synthetic;
  std::string schemes = "w4a16_g128";
  std::string strategy = "resident";
  std::string budget = "100%";
  std::vector<int> batch = {1};
  int64_t context = 256;
  std::vector<int> prompt = {512, 2048};
  int64_t steps = 64;
  int64_t repeats = 5;
  bool eager = false;
  int64_t seed = 1;
  std::string json;
  bool quiet = false;
};

/// The config.json that such a model would have. Unimplemented for shapes whose dense parts the
/// table does not have.
absl::StatusOr<HfConfig> DecoderConfig(const Shape& shape);

/// {"device", "driver", "runtime", "decode": [...], "prompts": [...]}. Unavailable without a
/// device.
absl::StatusOr<nlohmann::json> RunDecoderBench(const DecoderBenchOptions& options);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_DECODER_BENCH_H_
