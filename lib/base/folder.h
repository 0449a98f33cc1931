// Lists and removes folders. Does not use std::filesystem's iterators: if memory runs out in one of
// them, libstdc++ terminates the process, because they allocate in a noexcept function.
#ifndef MOERT_LIB_BASE_FOLDER_H_
#define MOERT_LIB_BASE_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert {

/// The names in a folder, in order, without "." and "..".
absl::StatusOr<std::vector<std::string>> FolderNames(const std::string& path);

/// Removes a file, or a folder with its contents. Links are removed, never their targets. Returns
/// 0, also if the path does not exist, or the errno of an entry that could not be removed.
int RemoveTree(const std::string& path) noexcept;

}  // namespace moert

#endif  // MOERT_LIB_BASE_FOLDER_H_
