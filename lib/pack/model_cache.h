// The cached bf16 pack of an HF checkpoint: OpenModel of moert/source/expert_source.h.
#ifndef MOERT_LIB_PACK_MODEL_CACHE_H_
#define MOERT_LIB_PACK_MODEL_CACHE_H_

#include <string>

#include "absl/status/statusor.h"
#include "moert/tools/env.h"

namespace moert {

/// 16 hex digits that identify a checkpoint by content, not by path: config.json and, for each
/// weight file, its size, its header, and its data: all of it up to 64 MiB, above that a sample of
/// blocks and the time of its last change.
absl::StatusOr<std::string> CheckpointIdentity(const std::string& model_dir, Env* env);

/// `requested`, or the user's cache folder if empty; created if necessary. The error says how to
/// fix the problem.
absl::StatusOr<std::string> CacheDirectory(const std::string& requested);

}  // namespace moert

#endif  // MOERT_LIB_PACK_MODEL_CACHE_H_
