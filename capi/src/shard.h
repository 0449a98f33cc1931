// Shards, from C.
#ifndef MOERT_CAPI_SRC_SHARD_H_
#define MOERT_CAPI_SRC_SHARD_H_

#include "absl/status/statusor.h"
#include "moert.h"
#include "moert/options.h"

namespace moert::capi {

/// Checks what the engine cannot see. `name` is for messages.
absl::StatusOr<Shard> ReadShard(const moert_shard* shard, const char* name);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_SHARD_H_
