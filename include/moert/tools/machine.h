// Memory and CPUs that the machine gives this process: the basis for a host's choice of a budget.
#ifndef MOERT_TOOLS_MACHINE_H_
#define MOERT_TOOLS_MACHINE_H_

#include <cstdint>
#include <string>

namespace moert {

/// Bytes.
struct MemoryLimits {
  int64_t installed = 0;           // 0: unknown
  int64_t available = 0;           // without swapping; 0: unknown
  int64_t control_group = -1;      // the tightest limit of a container or service; -1: none
  int64_t control_group_used = 0;  // of that limit, without cached files
  int64_t address_space = -1;      // `ulimit -v`; -1: none

  /// Bytes that the process may hold beside those held already. 0: unknown.
  int64_t usable() const;
  /// The limit that usable() follows from, as text after the number in a message.
  const char* reason() const;
};

/// As it is now. `root`: where /proc and /sys are looked for, so that a test can have its own.
/// Thread-safe; what cannot be read is unknown.
MemoryLimits ReadMemoryLimits(const std::string& root = "");

struct CpuLimits {
  int affinity = 1;  // CPUs that its threads may run on
  double quota = 0;  // CPUs' time that a container or service may use, the tightest; 0: no limit

  /// Threads that can run at a time without being stopped for the quota; at least 1. A pool has
  /// so many where nothing else was said.
  int usable() const;
};

/// As it is now. `root`: where /proc and /sys are looked for. Thread-safe.
CpuLimits ReadCpuLimits(const std::string& root = "");

}  // namespace moert

#endif  // MOERT_TOOLS_MACHINE_H_
