// The experts of a checkpoint as a source, without a pack between.
#ifndef MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_
#define MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "moert/expert_source.h"

namespace moert {

/// One version, bf16: each record is read from the checkpoint's tensors and packed when it is asked
/// for, with the bytes that a bf16 pack would have.
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenCheckpointSource(const std::string& model_dir);

}  // namespace moert

#endif  // MOERT_LIB_PACK_CHECKPOINT_SOURCE_H_
