#include "record.h"

#include <set>
#include <string>

#include "base/mutex.h"

namespace moert::capi {

moert_matrix ToC(const MatrixLayout& m) {
  return {Intern(m.scheme.Name()),
          m.rows,
          m.k,
          m.padded_rows,
          m.padded_k,
          m.group,
          m.weight_offset,
          m.weight_bytes,
          m.scale_offset,
          m.scale_bytes};
}

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
