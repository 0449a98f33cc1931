// Folders, listed and removed. Not std::filesystem's iterators: where memory runs out under one of
// them, libstdc++ ends the process (what they allocate is in a function that must not throw).
#ifndef MOERT_LIB_BASE_FOLDER_H_
#define MOERT_LIB_BASE_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert {

/// The names in a folder, in order, without "." and "..".
absl::StatusOr<std::vector<std::string>> FolderNames(const std::string& path);

/// Removes a file, or a folder with all that is in it; links themselves, never what they name.
/// Returns 0, also where there is nothing, or the errno of what could not be removed.
int RemoveTree(const std::string& path) noexcept;

}  // namespace moert

#endif  // MOERT_LIB_BASE_FOLDER_H_
