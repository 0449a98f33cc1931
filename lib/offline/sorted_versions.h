// Sorts the versions of a pack into the order in which packs list them.
#ifndef MOERT_LIB_OFFLINE_SORTED_VERSIONS_H_
#define MOERT_LIB_OFFLINE_SORTED_VERSIONS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "moert/model.h"
#include "pack/pack_manifest.h"

namespace moert::offline {

/// Most bytes first. InvalidArgument if two have the same name.
absl::StatusOr<std::vector<PackVersion>> SortedVersions(const MoeModelSpec& model,
                                                        std::vector<PackVersion> versions);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_SORTED_VERSIONS_H_
