// Debian's static Abseil is compiled for executables. The functions below replace those that cannot
// be part of a shared library.
//
// A Status can carry Cords as payloads. This library attaches none, so the payload functions that
// absl::Status refers to do nothing. The real ones would link Cord, whose thread-local variable has
// to lie in the static TLS block, which is laid out when a process starts. Almost none of that
// block is left for libraries that are loaded later (Python's ctypes, plug-ins), and never enough
// beside the CUDA runtime's variables, which need it too: "cannot allocate memory in static TLS
// block".
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

#include "absl/base/internal/sysinfo.h"
#include "absl/strings/cord.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

void Cord::DestroyCordSlow() {}
void Cord::InlineRep::UnrefTree() {}
bool Cord::EqualsImpl(const Cord&, size_t) const { return false; }
Cord::operator std::string() const { return {}; }

namespace cord_internal {

void CordzInfo::MaybeTrackCordImpl(InlineData&, const InlineData&, MethodIdentifier) {}

}  // namespace cord_internal

namespace base_internal {

int NumCPUs() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }
double NominalCPUFrequency() { return 1.0; }  // "unknown", as Abseil says it
pid_t GetTID() { return static_cast<pid_t>(syscall(SYS_gettid)); }
pid_t GetCachedTID() { return GetTID(); }

}  // namespace base_internal
ABSL_NAMESPACE_END
}  // namespace absl
