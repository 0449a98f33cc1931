// ServedMisses: records that move into and out of pinned memory while the device reads from it.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/status_macros.h"
#include "exec/cuda/cache/served_misses.h"

namespace moert::cuda {

absl::Status ServedMisses::InitMoving(const std::vector<ServedRecord>& placed) {
  MOERT_ASSIGN_OR_RETURN(
      placed_, Buffer::Pinned(static_cast<int64_t>(placed.size() * sizeof(ServedRecord))));
  std::copy(placed.begin(), placed.end(), reinterpret_cast<ServedRecord*>(placed_.data()));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&moved_, cudaEventDisableTiming));
  seen_taken_.assign(placed.size(), 0);
  return taken_.Init(on_device_.taken, std::ssize(placed) * int64_t{sizeof(uint32_t)});
}

void ServedMisses::CountTaken() {
  if (!reads_below()) return;
  const auto* now = reinterpret_cast<const uint32_t*>(taken_.Take());
  for (size_t i = 0; now != nullptr && i < seen_taken_.size(); ++i) {
    if (now[i] == seen_taken_[i]) continue;
    seen_taken_[i] = now[i];
    records_->Use(static_cast<int32_t>(i));
  }
}

absl::Status ServedMisses::MoveRecords(cudaStream_t stream) {
  if (!reads_below()) return absl::OkStatus();
  if (moving_ && untold_begin_ == untold_end_) {
    // Until the last copy is done, placed_ must not change and places that were let go must not be
    // reused.
    if (QueryEvent(moved_) != cudaSuccess || !records_->Left()) return absl::OkStatus();
    moving_ = false;
  }
  if (!moving_) TurnRecords();
  if (untold_begin_ == untold_end_) return absl::OkStatus();
  if (rules_.prefetch()) MOERT_RETURN_IF_ERROR(beside_.JoinCopies(stream));
  const auto* const table = reinterpret_cast<const ServedRecord*>(placed_.data());
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(
      on_device_.records + untold_begin_, table + untold_begin_,
      (untold_end_ - untold_begin_) * sizeof(ServedRecord), cudaMemcpyHostToDevice, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(moved_, stream));
  untold_begin_ = untold_end_ = 0;  // after a failure the next step copies these rows again
  return absl::OkStatus();
}

void ServedMisses::TurnRecords() {
  auto* const table = reinterpret_cast<ServedRecord*>(placed_.data());
  size_t begin = seen_taken_.size(), end = 0;
  for (const PinnedSet::Change& change : records_->Turn()) {
    const auto at = static_cast<size_t>(change.record);
    table[at].host = Mapped(change.place, table[at].bytes);
    begin = std::min(begin, at);
    end = std::max(end, at + 1);
  }
  if (end == 0) return;
  moving_ = true;
  untold_begin_ = begin;
  untold_end_ = end;
}

}  // namespace moert::cuda
