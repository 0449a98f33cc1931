#include "exec/cuda/selection_return.h"

#include "base/status_macros.h"

namespace moert::cuda {

SelectionReturn::~SelectionReturn() {
  if (arrived_ != nullptr) cudaEventDestroy(arrived_);
  if (counted_ != nullptr) cudaEventDestroy(counted_);
  if (beside_ != nullptr) cudaStreamDestroy(beside_);
}

absl::Status SelectionReturn::Init(SelectionTally* tally, int64_t rows) {
  tally_ = tally;
  seen_.resize(rows);
  const auto bytes = static_cast<int64_t>(rows * sizeof(SelectionTally));
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Pinned(bytes));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemset(tally, 0, bytes));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&counted_, cudaEventDisableTiming));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming));
  return absl::OkStatus();
}

absl::Status SelectionReturn::Bring(cudaStream_t stream) {
  if (under_way_) return absl::OkStatus();
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(counted_, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(beside_, counted_, 0));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(memory_.data(), tally_,
                                             seen_.size() * sizeof(SelectionTally),
                                             cudaMemcpyDeviceToHost, beside_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(arrived_, beside_));
  under_way_ = true;
  return absl::OkStatus();
}

bool SelectionReturn::Take(std::vector<SelectionCount>* added) {
  if (!under_way_ || QueryEvent(arrived_) != cudaSuccess) return false;
  under_way_ = false;
  const auto* now = reinterpret_cast<const SelectionTally*>(memory_.data());
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
