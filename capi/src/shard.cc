#include "moert/parallel/shard.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "options.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

constexpr int64_t kMaxShards = 65536;

moert_shard Whole() {
  moert_shard shard{};
  shard.shared_experts = 1;
  return shard;
}

absl::Status CheckNumber(const char* name, const char* field, int64_t value, int64_t most) {
  return CheckRange(absl::StrCat(name, ".", field), value, 0, most);
}

absl::Status ReadList(const moert_shard& c, const char* name, Shard* shard) {
  for (int64_t i = 0; i < c.expert_list_size;) {
    const int64_t count = c.expert_list[i++];
    if (count < 0 || count > c.expert_list_size - i) {
      return Illegal(name, ".expert_list[", i - 1, "] is ", count, " experts of layer ",
                     shard->experts.size(), ", and ", c.expert_list_size - i, " values follow");
    }
    shard->experts.emplace_back(c.expert_list + i, c.expert_list + i + count);
    i += count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Shard> ReadShard(const moert_shard* shard, const char* name) {
  moert_shard c = Whole();
  MOERT_RETURN_IF_ERROR(ReadStruct(shard, name, &c));
  MOERT_RETURN_IF_ERROR(CheckNumber(name, "first_expert", c.first_expert, INT32_MAX));
  MOERT_RETURN_IF_ERROR(CheckNumber(name, "num_experts", c.num_experts, INT32_MAX));
  MOERT_RETURN_IF_ERROR(CheckNumber(name, "shared_experts", c.shared_experts, 1));
  MOERT_RETURN_IF_ERROR(CheckNumber(name, "expert_list_size", c.expert_list_size, INT32_MAX));
  const bool range = c.expert_list == nullptr;
  if (range && c.num_experts == 0 && c.first_expert != 0) {
    return Illegal(name, ".first_expert is ", c.first_expert,
                   ", and num_experts is 0, which means all from 0 on: give the number of experts");
  }
  if (!range && c.expert_list_size == 0) {
    return Illegal(name,
                   ".expert_list_size is 0, legal is a number for each layer and its experts");
  }
  Shard result;
  result.first_expert = static_cast<int>(c.first_expert);
  result.num_experts = static_cast<int>(c.num_experts);
  result.first_channel = c.first_channel;
  result.num_channels = c.num_channels;
  result.shared_experts = c.shared_experts != 0;
  if (c.expert_list != nullptr) MOERT_RETURN_IF_ERROR(ReadList(c, name, &result));
  return result;
}

}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_shard_init(moert_shard* shard, uint64_t size) { InitStruct(shard, size, Whole()); }

moert_code moert_shards_check(const moert_source* source, const moert_shard* shards,
                              int64_t num_shards, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    MOERT_REQUIRE_NOT_NULL(shards);
    if (num_shards < 1 || num_shards > kMaxShards) {
      return Illegal("num_shards is ", num_shards, ", legal is 1 to ", kMaxShards);
    }
    std::vector<moert::Shard> all;
    MOERT_RETURN_IF_ERROR(ReadArray(
        shards, num_shards, "shards", [&](uint64_t, const moert_shard* in) -> absl::Status {
          MOERT_ASSIGN_OR_RETURN(moert::Shard shard, ReadShard(in, "shards[]"));
          all.push_back(std::move(shard));
          return absl::OkStatus();
        }));
    return moert::CheckShards(source->source->model(), all);
  });
}

}  // extern "C"
