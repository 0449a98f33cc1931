// The names in a folder. Does not use std::filesystem's iterators: libstdc++ ends the process if
// memory runs out in one of them.
#ifndef MOERT_EXAMPLES_UTIL_FOLDER_NAMES_H_
#define MOERT_EXAMPLES_UTIL_FOLDER_NAMES_H_

#include <dirent.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moert::util {

/// Without "." and ".."; empty if the folder cannot be read.
inline std::vector<std::string> FolderNames(const std::string& path) {
  const std::unique_ptr<DIR, void (*)(DIR*)> folder(::opendir(path.c_str()),
                                                    [](DIR* d) { ::closedir(d); });
  std::vector<std::string> names;
  if (folder == nullptr) return names;
  while (const dirent* const entry = ::readdir(folder.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  return names;
}

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_FOLDER_NAMES_H_
