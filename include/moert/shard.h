// Shards of a model: see Shard in options.h.
#ifndef MOERT_SHARD_H_
#define MOERT_SHARD_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/options.h"

namespace moert {

/// OK when the shards cover every expert, every channel of it and the shared experts of the model
/// exactly once, so that their outputs add up to the layer's. InvalidArgument names the layer, what
/// is missing or twice, and the shards that own it.
absl::Status CheckShards(const MoeModelSpec& model, absl::Span<const Shard> shards);

}  // namespace moert

#endif  // MOERT_SHARD_H_
