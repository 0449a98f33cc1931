// A part of a source: some experts, a slice of their intermediate dimension, with or without shared
// experts.
#ifndef MOERT_LIB_SOURCE_SHARD_SOURCE_H_
#define MOERT_LIB_SOURCE_SHARD_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/source/expert_source.h"

namespace moert {

/// A shard with all defaults resolved.
struct ShardPlan {
  std::vector<std::vector<int32_t>>
      experts;  // of every layer, ascending, as the source counts them
  bool all_experts = true;
  int64_t first_channel = 0;
  int64_t num_channels = 0;  // 0: all
  bool shared_experts = true;
};

/// The part of `source` that a shard owns, as a source of its own. In layers where experts are
/// missing, the others are renumbered; the host routes such layers (kExternal), and they have no
/// gates. A slice is cut out of each record as it is read, with scratch memory for one whole record
/// per read. InvalidArgument if the slice does not respect a scheme's groups.
absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeShardSource(
    std::shared_ptr<const ExpertSource> source, const ShardPlan& plan);

/// Copies channels [first, first + layout.k of down) of the intermediate dimension of a whole
/// record into a record of `layout`. Exposed for tests.
void SliceRecord(const RecordLayout& whole, const std::byte* from, int64_t first,
                 const RecordLayout& layout, std::byte* to);

}  // namespace moert

#endif  // MOERT_LIB_SOURCE_SHARD_SOURCE_H_
