// Opens the decoder that fits an engine: on the CPU, or whole on the engine's device.
#ifndef MOERT_EXAMPLES_HOST_OPEN_DECODER_H_
#define MOERT_EXAMPLES_HOST_OPEN_DECODER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "host/token_model.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/thread_pool.h"

namespace moert::host {

struct OpenDecoderOptions {
  int64_t max_rows = 0;  // EngineOptions::max_tokens_per_forward
  int device = 0;        // EngineOptions::device
  bool graphs = true;    // CUDA graphs of decode steps, where the strategy allows them
};

struct OpenedDecoder {
  std::unique_ptr<TokenModel> model;
  std::string note;  // for the user; empty: none
};

/// `engine` and `pool` are borrowed for the decoder's life.
absl::StatusOr<OpenedDecoder> OpenDecoder(const Checkpoint& checkpoint, const HfConfig& config,
                                          Engine* engine, ThreadPool* pool,
                                          const OpenDecoderOptions& options);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_OPEN_DECODER_H_
