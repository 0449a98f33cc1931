// The experts of a checkpoint as a source, without a pack in between.
#ifndef MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_
#define MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/offline/pack.h"
#include "moert/source/expert_source.h"

namespace moert {

/// The single version of every expert that the file contains.
PackVersion StoredVersion(const CheckpointExperts& experts);

/// A source of that version, or with `widen` of bf16. Each record is read from the checkpoint's
/// tensors on request, with the bytes that a pack of OpenModel would have.
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenCheckpointSource(const std::string& model_dir,
                                                                   bool widen);

}  // namespace moert

#endif  // MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_
