#include "checkpoint/shard_index.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/errors.h"
#include "base/folder.h"
#include "base/printable.h"
#include "base/status_macros.h"

namespace moert {
namespace {

constexpr size_t kMaxShards = 10'000;

}  // namespace

absl::StatusOr<std::vector<ShardFile>> ReadShardIndex(const JsonDocument& index,
                                                      const std::string& path) {
  const auto map = index.root().Find("weight_map");
  if (!map || !map->is_object()) return InvalidArgument("{}: weight_map is not an object", path);
  // Counts first, so that lists have exactly the size they need.
  std::map<std::string, size_t> counts;
  for (const JsonMember& m : map->members()) {
    // Shards lie beside their index; any other path is an attempt to read other files.
    const auto file = m.value.AsString();
    if (!file || !IsPlainFileName(*file)) {
      return InvalidArgument("{}: tensor {}: its file must be a plain file name in the same folder",
                             path, Printable(m.key.text()));
    }
    ++counts[*file];
    if (counts.size() > kMaxShards) {
      return InvalidArgument("{}: more than {} shards", path, kMaxShards);
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

absl::StatusOr<std::vector<std::string>> NumberedShards(const std::string& dir) {
  constexpr absl::string_view kEnd = ".safetensors", kBegin = "model-";
  std::vector<std::string> shards;
  MOERT_ASSIGN_OR_RETURN(const std::vector<std::string> names, FolderNames(dir));
  size_t total = 0;
  for (const std::string& name : names) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, kBegin) || !absl::ConsumeSuffix(&rest, kEnd)) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, "-of-");
    size_t number = 0, of = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &number) ||
        !absl::SimpleAtoi(parts[1], &of) || of == 0 || of > kMaxShards) {
      continue;
    }
    shards.push_back(name);
    if (total == 0) total = of;
    // Names are in order: each number must occur once, without gaps.
    if (of == total && number == shards.size()) continue;
    return InvalidArgument("{}: {} is not shard {} of {}, and there is no index", dir,
                           Printable(name), shards.size(), total);
  }
  if (shards.size() == total) return shards;
  return InvalidArgument("{}: {} of {} shards are there, and there is no index", dir, shards.size(),
                         total);
}

}  // namespace moert
