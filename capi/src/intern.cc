#include "intern.h"

#include <set>
#include <string>

#include "base/mutex.h"

namespace moert::capi {

const char* Intern(absl::string_view text) {
  struct Names {
    Mutex mu;
    std::set<std::string> all ABSL_GUARDED_BY(mu);
  };
  static auto* const names = new Names;
  const MutexLock lock(&names->mu);
  return names->all.emplace(text).first->c_str();
}

}  // namespace moert::capi
