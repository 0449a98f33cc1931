// Runs a fuzz target over files, with any compiler: the arguments are files and folders of them.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(argv[i])) {
      files.push_back(entry.path());
    }
  }
  for (const fs::path& path : files) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return std::fprintf(stderr, "%s: cannot be read\n", path.c_str()), 2;
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    // The last line before a crash says whose it is.
    std::fprintf(stderr, "%s\n", path.c_str());
    // A buffer of its own without slack, for address sanitizers.
    std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
  std::printf("%zu files\n", files.size());
  return files.empty() ? 2 : 0;
}
