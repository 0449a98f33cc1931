// DeviceSource: keeps records of a version in pinned memory from the start.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes_text.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "exec/backend.h"
#include "exec/cuda/memory/device_transfers.h"
#include "source/read_records.h"

namespace moert::cuda {

absl::Status DeviceSource::KeepAll(int version, ThreadPool* pool) {
  const int64_t budget = host_budget_ - whole_bytes_, bytes = UnpinnedBytes(*source_, {version});
  std::vector<ExpertKey> missing = RecordsToKeep(*source_, version, budget);
  std::erase_if(missing, [&](ExpertKey key) { return Kept(key, version); });
  std::vector<absl::Status> kept(missing.size());
  pool->Run(static_cast<int64_t>(missing.size()), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    kept[at] = Keep(missing[at], version);
  });
  if (!HostHoldsAll(*source_, {version}, budget)) {
    return FailedPrecondition(
        "records in {} are read as they are needed: a host_budget of {} would hold all from the "
        "start",
        version_name(version), BytesText(whole_bytes_ + bytes));
  }
  MOERT_RETURN_IF_ERROR(FirstError(kept));
  whole_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status DeviceSource::Keep(ExpertKey key, int version) {
  DeviceScope scope(device_);
  const int64_t rounded = PlaceBytes(*source_, key.layer, key.expert, version);
  std::byte* place = Reserve(rounded);
  if (place == nullptr) {
    return absl::FailedPreconditionError("host_budget, or what may be pinned, is used up");
  }
  MOERT_RETURN_IF_ERROR(
      source_->ReadRecord(key.layer, key.expert, version, absl::MakeSpan(place, rounded)));
  const MutexLock lock(&mu_);
  KeepAt(key, version, place);
  return absl::OkStatus();
}

void DeviceSource::KeepAt(ExpertKey key, int version, std::byte* place) const {
  const int64_t bytes = PlaceBytes(*source_, key.layer, key.expert, version);
  const bool moves = set_ != nullptr && version == moving_version_;
  if (moves && !set_->Add(Number(key), place, bytes, /*known=*/false)) return;
  kept_[Id(key.layer, key.expert, version)] = place;
}

absl::Status DeviceSource::MoveByUse(int version) {
  constexpr int64_t kMostSpare = 64, kSpareShare = 8;
  int32_t records = 0;
  for (int l = 0; l < model().num_layers(); ++l) {
    first_.push_back(records);
    records += model().layers[l].num_experts;
    for (int e = 0; e < model().layers[l].num_experts; ++e) {
      largest_ = std::max(largest_, PlaceBytes(*source_, l, e, version));
    }
  }
  DeviceScope scope(device_);
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&left_, cudaEventDisableTiming));
  const int64_t spare =
      std::min(kMostSpare, (pinned_limit_ - whole_bytes_) / largest_ / kSpareShare);
  auto set = std::make_unique<PinnedSet>(records, static_cast<int32_t>(spare));
  for (int l = 0; l < model().num_layers(); ++l) {
    const MutexLock lock(&mu_);
    for (int e = 0; e < model().layers[l].num_experts; ++e) {
      const auto it = kept_.find(Id(l, e, version));
      if (it == kept_.end()) continue;
      set->Add(Number({l, e}), const_cast<std::byte*>(it->second),
               PlaceBytes(*source_, l, e, version), /*known=*/true);
    }
  }
  moving_version_ = version;
  set_ = std::move(set);
  // Pins the whole budget now, because pinning takes long and waits for the device.
  while (host_budget_ >= 0 && AddPlace()) {
  }
  return absl::OkStatus();
}

bool DeviceSource::AddPlace() {
  std::byte* const place = Reserve(largest_);
  if (place != nullptr) set_->AddPlace(place, largest_);
  return place != nullptr;
}

void DeviceSource::NoticeBudget(std::string notice) const {
  if (host_budget_ < 0) return;
  const MutexLock lock(&mu_);
  if (notice_.empty()) notice_ = std::move(notice);
}

PinnedSet::Found DeviceSource::Find(ExpertKey key, bool elsewhere) {
  const std::byte* own = source_->PinnedRecord(key.layer, key.expert, moving_version_);
  if (own != nullptr) return {const_cast<std::byte*>(own), true};
  const int64_t bytes = PlaceBytes(*source_, key.layer, key.expert, moving_version_);
  return set_->Find(Number(key), bytes, elsewhere);
}

std::vector<PinnedSet::Change> DeviceSource::Turn() {
  for (int64_t lacking = set_->lacking(); lacking > 0 && AddPlace(); --lacking) {
  }
  const MutexLock lock(&mu_);
  std::vector<PinnedSet::Change> changes = set_->Turn([&](int32_t number) {
    mu_.AssertHeld();
    return !reading_.empty() && Reads(number);
  });
  for (const PinnedSet::Change& change : changes) {
    const ExpertKey key = KeyOf(change.record);
    const int64_t id = Id(key.layer, key.expert, moving_version_);
    if (change.place == nullptr) {
      kept_.erase(id);
    } else {
      kept_[id] = change.place;
    }
  }
  if (!changes.empty()) unmarked_ = cudaEventRecord(left_, stream_) != cudaSuccess;
  return changes;
}

bool DeviceSource::Left() {
  if (unmarked_) {  // recording left_ failed: a later record covers the copies as well
    unmarked_ = cudaEventRecord(left_, stream_) != cudaSuccess;
    return false;
  }
  if (QueryEvent(left_) != cudaSuccess) return false;
  set_->Left();
  return true;
}

ExpertKey DeviceSource::KeyOf(int32_t number) const {
  const auto next = std::upper_bound(first_.begin(), first_.end(), number);
  const auto layer = static_cast<int>(next - first_.begin()) - 1;
  return {layer, number - first_[layer]};
}

bool DeviceSource::Reads(int32_t number) const {
  const ExpertKey key = KeyOf(number);
  const int64_t id = Id(key.layer, key.expert, moving_version_);
  return std::find(reading_.begin(), reading_.end(), id) != reading_.end();
}

absl::Status KeepRecords(DeviceSource* records, int version, int low, bool shared,
                         ThreadPool* pool) {
  const auto refuse = [&](const std::string& text) {
    records->NoticeBudget(absl::StrCat("the host brings what is missing, call by call: ", text));
    return absl::FailedPreconditionError(text);
  };
  if (low >= 0) {
    const absl::Status kept = records->KeepAll(low, pool);
    if (absl::IsFailedPrecondition(kept)) return refuse(std::string(kept.message()));
    MOERT_RETURN_IF_ERROR(kept);
  }
  const absl::Status kept = records->KeepAll(version, pool);
  if (!absl::IsFailedPrecondition(kept)) return kept;
  if (!shared) {
    return refuse(absl::StrCat(kept.message(),
                               "; or a CPU computes what is not pinned: accept faithful results "
                               "(--promise faithful), with cpu=1 where the strategy has that key"));
  }
  MOERT_RETURN_IF_ERROR(records->MoveByUse(version));
  records->NoticeBudget(
      absl::StrCat(BytesText(records->pinned_bytes()), " of pinned memory (host_budget) for ",
                   BytesText(records->whole_bytes() + UnpinnedBytes(records->source(), {version})),
                   " of records: the CPU computes what is elsewhere; what is used comes there"));
  return absl::OkStatus();
}

}  // namespace moert::cuda
