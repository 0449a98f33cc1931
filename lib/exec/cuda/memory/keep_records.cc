// DeviceSource: records of a version in pinned memory from the start.
#include <vector>

#include "base/bytes_text.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "exec/backend.h"
#include "exec/cuda/memory/device_transfers.h"

namespace moert::cuda {

absl::Status DeviceSource::KeepAll(int version, ThreadPool* pool) {
  std::vector<ExpertKey> missing = RecordsToKeep(*source_, version, host_budget_);
  std::erase_if(missing, [&](ExpertKey key) { return Kept(key, version); });
  std::vector<absl::Status> kept(missing.size());
  pool->Run(static_cast<int64_t>(missing.size()), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    kept[at] = Keep(missing[at], version);
  });
  if (!HostHoldsAll(*source_, {version}, host_budget_)) {
    return FailedPrecondition(
        "records are read as they are needed: a host_budget of {} would hold all from the start",
        BytesText(UnpinnedBytes(*source_, {version})));
  }
  absl::Status status;
  for (const absl::Status& s : kept) status.Update(s);
  return status;
}

absl::Status DeviceSource::Keep(ExpertKey key, int version) {
  DeviceScope scope(device_);
  const auto rounded = RoundUp(layout(key.layer, key.expert, version).bytes, kRecordAlignment);
  std::byte* place = Reserve(rounded);
  if (place == nullptr) {
    return absl::FailedPreconditionError("host_budget, or what may be pinned, is used up");
  }
  MOERT_RETURN_IF_ERROR(
      source_->ReadRecord(key.layer, key.expert, version, absl::MakeSpan(place, rounded)));
  const MutexLock lock(&mu_);
  kept_[Id(key.layer, key.expert, version)] = place;
  return absl::OkStatus();
}

}  // namespace moert::cuda
