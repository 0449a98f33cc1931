// generation_config.json: the sampling settings that a model's publisher recommends.
#ifndef MOERT_EXAMPLES_HOST_GENERATION_CONFIG_H_
#define MOERT_EXAMPLES_HOST_GENERATION_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "host/sampling.h"

namespace moert::host {

struct GenerationConfig {
  bool found = false;
  SamplingOptions sampling;  // greedy where the file does not say do_sample
  int64_t top_k = 0;         // requested, but not supported; 0: none
};

/// Reads generation_config.json from a model's folder; greedy without the file. Errors name the
/// file, field and legal range.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& model_dir);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_GENERATION_CONFIG_H_
