// Reads a model's needs from a config.json alone, a checkpoint or a GGUF.
#ifndef MOERT_EXAMPLES_CLI_DOCTOR_MODEL_FACTS_H_
#define MOERT_EXAMPLES_CLI_DOCTOR_MODEL_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert::cli {

enum class ModelKind { kConfig, kCheckpoint, kGguf };

/// The routed experts in one scheme.
struct ExpertsAs {
  std::string scheme;
  bool stored = false;      // the file's own
  int64_t bytes = 0;        // of all
  int64_t token_bytes = 0;  // of those that one token uses
};

struct ModelFacts {
  ModelKind kind = ModelKind::kConfig;
  std::string path;
  std::string architecture;
  std::string stored;  // in what form a quantized file has its weights; empty: floats
  bool chats = true;   // false: a whole checkpoint that brings no chat template
  int layers = 0, moe_layers = 0;
  int64_t experts = 0;  // of a layer
  int64_t top_k = 0;
  int64_t hidden = 0, intermediate = 0;
  /// As stored first. More, narrower ones follow only where the file has floats: what a publisher
  /// has quantized is never widened or rounded again.
  std::vector<ExpertsAs> schemes;
  int64_t dense_bytes = 0;        // everything else that has to be held
  int64_t dense_token_bytes = 0;  // and what of it one token reads: no table of embeddings
  int64_t kv_bytes = 0;           // of the context asked for
  int64_t context = 0;
  int64_t fixed_bytes = 0;  // the engine's own tables and workspace
};

/// `path`: a folder with config.json, with or without weights, or a GGUF file. `context`: tokens.
absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& path, int64_t context);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_DOCTOR_MODEL_FACTS_H_
