// Debian's static Abseil is compiled for executables. All of it can be part of a shared library but
// two files, whose thread-local variables would be addressed as the executable's. These are their
// functions for the shared library; what they lose is the sampling of Cords, a profiler's affair.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <thread>

#include "absl/base/internal/sysinfo.h"
#include "absl/strings/internal/cordz_functions.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace cord_internal {

int32_t get_cordz_mean_interval() { return 0; }
void set_cordz_mean_interval(int32_t) {}

#ifdef ABSL_INTERNAL_CORDZ_ENABLED
ABSL_CONST_INIT thread_local int64_t cordz_next_sample = std::numeric_limits<int64_t>::max();

bool cordz_should_profile_slow() {
  cordz_next_sample = std::numeric_limits<int64_t>::max();
  return false;
}

void cordz_set_next_sample_for_testing(int64_t) {}
#endif

}  // namespace cord_internal

namespace base_internal {

int NumCPUs() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }
double NominalCPUFrequency() { return 1.0; }  // "unknown", as Abseil says it
pid_t GetTID() { return static_cast<pid_t>(syscall(SYS_gettid)); }
pid_t GetCachedTID() { return GetTID(); }

}  // namespace base_internal
ABSL_NAMESPACE_END
}  // namespace absl
