// Memory and CPUs that the machine gives this process: GPUs that the driver lists, a cache folder,
// a warning when memory will not do.
#ifndef MOERT_EXAMPLES_CLI_COMMON_MACHINE_H_
#define MOERT_EXAMPLES_CLI_COMMON_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "moert/tools/machine.h"

namespace moert::cli {

struct NvidiaDriver {
  std::string version;               // empty: no driver
  std::vector<std::string> devices;  // model names
};
NvidiaDriver ReadNvidiaDriver(const std::string& root = "");

/// The folder of cached packs: `requested`, else $XDG_CACHE_HOME/moert or ~/.cache/moert; empty if
/// neither is set. Not made.
std::string CacheFolder(const std::string& requested);

/// A warning, with the sum, if the memory that a run will hold does not fit; empty if it fits, or
/// nothing is known. `budget`: the engine's; `host`: dense weights and KV cache, held by this
/// program.
std::string MemoryWarning(const MemoryLimits& limits, int64_t budget, int64_t host);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_MACHINE_H_
