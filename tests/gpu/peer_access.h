// The same work in a process that may read other devices' memory, and in one that may not.
#ifndef MOERT_TESTS_GPU_PEER_ACCESS_H_
#define MOERT_TESTS_GPU_PEER_ACCESS_H_

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "base/hash64.h"
#include "device_array.h"
#include "tests/support/catch.h"

namespace moert::test {

/// Whether this process may read the second device's memory on the first one and the other way
/// round.
inline bool DevicesReachEachOther() {
  int there = 0, back = 0;
  REQUIRE(cudaDeviceCanAccessPeer(&there, 0, 1) == cudaSuccess);
  REQUIRE(cudaDeviceCanAccessPeer(&back, 1, 0) == cudaSuccess);
  return there != 0 && back != 0;
}

/// A line for PrintedBy, from values that have to be the same.
inline void PrintBits(const char* what, const std::vector<float>& values) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  std::printf("bits of %s: %016llx\n", what,
              static_cast<unsigned long long>(Hash64({bytes, values.size() * sizeof(float)})));
}

/// The lines that begin with "bits of " of a hidden case of this program.
inline std::string PrintedBy(const std::string& test_case, bool peer_access) {
  char path[4096] = {};
  REQUIRE(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0);
  const std::string command = std::string(peer_access ? "" : "NCCL_P2P_DISABLE=1 ") + "'" + path +
                              "' '" + test_case + "' 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string printed, all;
  char line[1024];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    all += line;
    if (std::string(line).rfind("bits of ", 0) == 0) printed += line;
  }
  INFO(all);
  REQUIRE(pclose(pipe) == 0);
  REQUIRE(!printed.empty());
  return printed;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_PEER_ACCESS_H_
