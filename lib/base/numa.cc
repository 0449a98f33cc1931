#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/errors.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace moert {
namespace {

constexpr int kMostNodes = 1024;

/// "0-3,8" of a file of the system; empty where there is none.
std::vector<int> ReadList(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  std::getline(in, text);
  std::vector<int> numbers;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(item, '-');
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) return {};
    for (int i = first; i <= last; ++i) numbers.push_back(i);
  }
  return numbers;
}

}  // namespace

std::vector<int> NumaNodes() {
  std::vector<int> nodes = ReadList("/sys/devices/system/node/has_memory");
  std::erase_if(nodes, [](int node) { return node < 0 || node >= kMostNodes; });
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

absl::StatusOr<std::vector<int>> NumaCpus(int node) {
  const std::vector<int> nodes = NumaNodes();
  if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
    return InvalidArgument("numa_node {}: this machine has {}; -1 leaves it to the system", node,
                           fmt::join(nodes, ", "));
  }
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) {
    return Unavailable("sched_getaffinity: {}", std::strerror(errno));
  }
  std::vector<int> cpus = ReadList(fmt::format("/sys/devices/system/node/node{}/cpulist", node));
  const bool told = !cpus.empty();
  for (int cpu = 0; !told && cpu < CPU_SETSIZE; ++cpu) cpus.push_back(cpu);
  std::erase_if(cpus, [&](int cpu) { return cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &usable); });
  if (!cpus.empty()) return cpus;
  return FailedPrecondition("numa_node {}: this process may use none of its CPUs", node);
}

absl::Status BindToNumaNode(void* memory, size_t bytes, int node) {
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;  // NOLINT(google-runtime-int)
  std::array<unsigned long, kMostNodes / kBits> nodes{};      // NOLINT(google-runtime-int)
  nodes[static_cast<size_t>(node) / kBits] = 1UL << (static_cast<size_t>(node) % kBits);
  if (syscall(SYS_mbind, memory, bytes, MPOL_BIND, nodes.data(), kMostNodes, 0) == 0) {
    return absl::OkStatus();
  }
  return Unavailable("memory of numa_node {}: mbind: {}", node, std::strerror(errno));
}

}  // namespace moert
