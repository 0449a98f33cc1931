#include "intern.h"

#include <mutex>
#include <set>
#include <string>

namespace moert::capi {

const char* Intern(absl::string_view text) {
  static auto* const mu = new std::mutex;
  static auto* const names = new std::set<std::string>;
  const std::lock_guard<std::mutex> lock(*mu);
  return names->emplace(text).first->c_str();
}

}  // namespace moert::capi
