// The index of a checkpoint in several files.
#ifndef MOERT_LIB_CHECKPOINT_SHARD_INDEX_H_
#define MOERT_LIB_CHECKPOINT_SHARD_INDEX_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace moert {

struct ShardFile {
  std::string file;
  std::vector<JsonValue> tensors;  // keys of the index; never empty
};

/// The shards of model.safetensors.index.json, by name. Borrows from `index`; `path` is for errors.
absl::StatusOr<std::vector<ShardFile>> ReadShardIndex(const JsonDocument& index,
                                                      const std::string& path);

/// Where there is no index: model-00001-of-00003.safetensors and its like in a folder, in order;
/// empty if there are none. InvalidArgument if one is missing.
absl::StatusOr<std::vector<std::string>> NumberedShards(const std::string& dir);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_SHARD_INDEX_H_
