// What the machine gives this process: memory and its limits, GPUs that the driver lists.
#ifndef MOERT_EXAMPLES_CLI_COMMON_MACHINE_H_
#define MOERT_EXAMPLES_CLI_COMMON_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace moert::cli {

struct MemoryLimits {
  int64_t installed = 0;           // bytes; 0: unknown
  int64_t available = 0;           // without swapping; 0: unknown
  int64_t control_group = -1;      // limit of the control group; -1: none
  int64_t control_group_used = 0;  // of that limit
  int64_t address_space = -1;      // `ulimit -v`; -1: none

  /// What the process may hold beside what is held already, and by which of them. 0: unknown.
  int64_t usable() const;
  const char* reason() const;
};

/// `root`: where /proc and /sys are looked for, so that a test can have its own.
MemoryLimits ReadMemoryLimits(const std::string& root = "");

struct NvidiaDriver {
  std::string version;               // empty: no driver
  std::vector<std::string> devices;  // model names
};
NvidiaDriver ReadNvidiaDriver(const std::string& root = "");

/// The folder of cached packs: `requested`, else $XDG_CACHE_HOME/moert or ~/.cache/moert; empty if
/// neither is set. Not made.
std::string CacheFolder(const std::string& requested);

/// A warning that what a run will hold does not fit, with the sum; empty if it fits, or nothing is
/// known. `budget`: the engine's; `host`: dense weights and KV cache, held by this program.
std::string MemoryWarning(const MemoryLimits& limits, int64_t budget, int64_t host);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_MACHINE_H_
