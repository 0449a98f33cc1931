// Part of a source: some experts, a slice of their intermediate dimension, shared experts or not.
#ifndef MOERT_LIB_SOURCE_SHARD_SOURCE_H_
#define MOERT_LIB_SOURCE_SHARD_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/source/expert_source.h"

namespace moert {

/// The complete parts that a shard owns.
struct ShardPlan {
  std::vector<std::vector<int32_t>>
      experts;  // of every layer, ascending, as the source counts them
  bool all_experts = true;
  int64_t first_channel = 0;
  int64_t num_channels = 0;  // 0: all
  bool shared_experts = true;
};

/// The part of `source` that a shard owns, as a source of its own. Experts are numbered anew in
/// each layer where not all are there; its layers are then routed by the host (kExternal) and have
/// no gates. A slice is cut out of each record as it is read, scratch memory for one whole record a
/// read. InvalidArgument where the slice does not respect the groups of a scheme.
absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeShardSource(
    std::shared_ptr<const ExpertSource> source, const ShardPlan& plan);

/// Channels [first, first + layout.k of down) of the intermediate dimension of a whole record, into
/// a record of `layout`. Exposed for tests.
void SliceRecord(const RecordLayout& whole, const std::byte* from, int64_t first,
                 const RecordLayout& layout, std::byte* to);

}  // namespace moert

#endif  // MOERT_LIB_SOURCE_SHARD_SOURCE_H_
