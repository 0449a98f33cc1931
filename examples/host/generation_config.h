// generation_config.json: how a model's publisher wants its tokens to be drawn.
#ifndef MOERT_EXAMPLES_HOST_GENERATION_CONFIG_H_
#define MOERT_EXAMPLES_HOST_GENERATION_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "host/sampling.h"

namespace moert::host {

struct GenerationConfig {
  bool found = false;
  SamplingOptions sampling;  // greedy where the file does not say do_sample
  int64_t top_k = 0;         // asked for and not supported; 0: none
};

/// Reads that of a model's folder. Without the file: greedy. Errors name the file, field and legal
/// range.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& model_dir);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_GENERATION_CONFIG_H_
