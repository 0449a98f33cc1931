#include "offline/sorted_versions.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "moert/offline/pack.h"

namespace moert::offline {

absl::StatusOr<std::vector<PackVersion>> SortedVersions(const MoeModelSpec& model,
                                                        std::vector<PackVersion> versions) {
  std::vector<std::pair<int64_t, PackVersion>> sized;
  for (PackVersion& version : versions) {
    for (const auto& [bytes, other] : sized) {
      if (other.name == version.name) {
        return InvalidArgument("two versions are called {}: plans need names of their own",
                               version.name);
      }
    }
    MOERT_ASSIGN_OR_RETURN(const VersionSize size, SizeOf(model, version));
    sized.emplace_back(size.bytes, std::move(version));
  }
  std::stable_sort(sized.begin(), sized.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  versions.clear();
  for (auto& [bytes, version] : sized) versions.push_back(std::move(version));
  return versions;
}

}  // namespace moert::offline
