#include "exec/cuda/cache/selection_return.h"

namespace moert::cuda {

absl::Status SelectionReturn::Init(SelectionTally* tally, int64_t rows) {
  seen_.resize(rows);
  return copy_.Init(tally, rows * static_cast<int64_t>(sizeof(SelectionTally)));
}

bool SelectionReturn::Take(std::vector<SelectionCount>* added) {
  const auto* now = reinterpret_cast<const SelectionTally*>(copy_.Take());
  if (now == nullptr) return false;
  added->resize(seen_.size());
  bool any = false;
  for (size_t i = 0; i < seen_.size(); ++i) {
    SelectionTally& seen = seen_[i];
    // Unsigned differences are right across a wrap.
    (*added)[i] = {now[i].slots - seen.slots, now[i].calls - seen.calls, now[i].mass - seen.mass};
    any = any || now[i].calls != seen.calls;
    seen = now[i];
  }
  return any;
}

}  // namespace moert::cuda
