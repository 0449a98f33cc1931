#include "store/acquire.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace moert {

absl::Status Acquire(VersionedStore* store, int64_t epoch, const PolicyContext& context,
                     absl::Span<const int32_t> experts, absl::FunctionRef<bool()> wait,
                     Pins* pins) {
  std::vector<ExpertKey> missing;
  pins->Reserve(experts.size());
  store->BeginLayerCall();
  store->Pump();
  for (const int32_t e : experts) {
    const ExpertKey key{context.layer, e};
    if (store->Lookup(key, epoch, 1) == LookupResult::kMiss) {
      missing.push_back(key);
    } else {
      pins->Add(key);
    }
  }
  const auto pin_if_there = [&](ExpertKey key) {
    if (store->Resolve(key, epoch).record == nullptr) return false;
    store->Touch(key, 1);
    pins->Add(key);
    return true;
  };
  while (true) {
    // Pins all arrived experts before a load may choose one of them as a victim.
    std::erase_if(missing, pin_if_there);
    if (missing.empty()) return absl::OkStatus();
    for (const ExpertKey key : missing) {
      if (!store->StartLoad(key, 0, LoadReason::kDemand, context)) break;
    }
    if (!wait()) {
      return ResourceExhausted("layer {} expert {}: every block of the budget is pinned or leased",
                               context.layer, missing.front().expert);
    }
    for (const ExpertKey key : missing) {
      if (store->Resolve(key, epoch).record != nullptr || store->Arriving(key)) continue;
      MOERT_RETURN_IF_ERROR(store->TakeFailure(key));
    }
  }
}

}  // namespace moert
