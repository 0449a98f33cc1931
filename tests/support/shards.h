// Shards of a layer, as tests cut them.
#ifndef MOERT_TESTS_SUPPORT_SHARDS_H_
#define MOERT_TESTS_SUPPORT_SHARDS_H_

#include <cstdint>

#include "moert/parallel/shard.h"

namespace moert::test {

/// A range of experts; `shared`: and the shared expert.
inline Shard Experts(int first, int count, bool shared) {
  Shard shard;
  shard.first_expert = first;
  shard.num_experts = count;
  shard.shared_experts = shared;
  return shard;
}

/// A range of channels of the intermediate dimension.
inline Shard Channels(int64_t first, int64_t count) {
  Shard shard;
  shard.first_channel = first;
  shard.num_channels = count;
  return shard;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_SHARDS_H_
