#include "offline/sorted_versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "moert/source/expert_source.h"

namespace moert::offline {
namespace {

/// Bytes of all records of a version.
absl::StatusOr<int64_t> VersionBytes(const MoeModelSpec& model, const PackVersion& version) {
  int64_t bytes = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[static_cast<size_t>(l)];
    for (int e = 0; e < layer.num_experts; ++e) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                             ExpertRecordLayout(layer, version.format(l, e)));
      bytes += layout.bytes;
    }
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<PackVersion>> SortedVersions(const MoeModelSpec& model,
                                                        std::vector<PackVersion> versions) {
  std::vector<std::pair<int64_t, PackVersion>> sized;
  for (PackVersion& version : versions) {
    for (const auto& [bytes, other] : sized) {
      if (other.name == version.name) {
        return absl::InvalidArgumentError(
            fmt::format("two versions are called {}: plans need names of their own", version.name));
      }
    }
    MOERT_ASSIGN_OR_RETURN(const int64_t bytes, VersionBytes(model, version));
    sized.emplace_back(bytes, std::move(version));
  }
  std::stable_sort(sized.begin(), sized.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  versions.clear();
  for (auto& [bytes, version] : sized) versions.push_back(std::move(version));
  return versions;
}

}  // namespace moert::offline
