// The experts of a checkpoint as a source, without a pack between.
#ifndef MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_
#define MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/offline/pack.h"
#include "moert/source/expert_source.h"

namespace moert {

/// The one version of every expert that the file has.
PackVersion StoredVersion(const CheckpointExperts& experts);

/// That version, or with `widen` bf16: each record is read from the checkpoint's tensors when it is
/// asked for, with the bytes that a pack of OpenModel would have.
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenCheckpointSource(const std::string& model_dir,
                                                                   bool widen);

}  // namespace moert

#endif  // MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_
