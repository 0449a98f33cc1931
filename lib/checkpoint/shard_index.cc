#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include <map>

#include "base/printable.h"

namespace moert {
namespace {

constexpr size_t kMaxShards = 10'000;

}  // namespace

absl::StatusOr<std::vector<ShardFile>> ReadShardIndex(const JsonDocument& index,
                                                      const std::string& path) {
  const auto map = index.root().Find("weight_map");
  if (!map || !map->is_object()) {
    return absl::InvalidArgumentError(fmt::format("{}: weight_map is not an object", path));
  }
  // Counted first: lists of exactly the size they need.
  std::map<std::string, size_t> counts;
  for (const JsonMember& m : map->members()) {
    // Shards lie beside their index; anything else is an attempt to read other files.
    const auto file = m.value.AsString();
    if (!file || !IsPlainFileName(*file)) {
      return absl::InvalidArgumentError(
          fmt::format("{}: tensor {}: its file must be a plain file name in the same folder", path,
                      Printable(m.key.text())));
    }
    ++counts[*file];
    if (counts.size() > kMaxShards) {
      return absl::InvalidArgumentError(fmt::format("{}: more than {} shards", path, kMaxShards));
    }
  }
  std::vector<ShardFile> shards;
  std::map<absl::string_view, size_t> place;
  for (const auto& [file, count] : counts) {
    place.emplace(file, shards.size());
    shards.push_back({file, {}});
    shards.back().tensors.reserve(count);
  }
  for (const JsonMember& m : map->members()) {
    shards[place[*m.value.AsString()]].tensors.push_back(m.key);
  }
  return shards;
}

}  // namespace moert
