#include "mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>

namespace moert_ggml {
namespace {

// One line of /proc/self/maps: "from-to perms offset major:minor inode   path".
struct Mapping {
  uint64_t from = 0, to = 0, offset = 0;
  unsigned major = 0, minor = 0;
  uint64_t inode = 0;
  std::string path;

  bool Parse(const std::string& line) {
    int end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %x:%x %" SCNu64 " %n",
                    &from, &to, &offset, &major, &minor, &inode, &end) != 6) {
      return false;
    }
    path = line.substr(static_cast<size_t>(end));
    return inode != 0 && !path.empty();
  }

  // Another file may have the path by now: the inode decides.
  bool PathIsCurrent() const {
    struct stat file;
    return stat(path.c_str(), &file) == 0 && file.st_ino == inode;
  }
};

}  // namespace

FileRange FindMappedFile(const void* address, size_t size) {
  const auto from = reinterpret_cast<uint64_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Mapping mapping;
    if (!mapping.Parse(line) || from < mapping.from || from >= mapping.to) continue;
    if (from + size > mapping.to || !mapping.PathIsCurrent()) break;
    return {mapping.path, static_cast<int64_t>(from - mapping.from + mapping.offset)};
  }
  return {};
}

bool DropMappedPages(const void* address, size_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = (reinterpret_cast<uintptr_t>(address) + page - 1) / page * page;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(address) + size) / page * page;
  return from >= to || madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED) == 0;
}

}  // namespace moert_ggml
