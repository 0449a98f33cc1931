#include "exec/cuda/memory/late_copy.h"

#include "base/status_macros.h"

namespace moert::cuda {

LateCopy::~LateCopy() {
  if (under_way_) AwaitEvent(arrived_);  // behind the step's last ticket
  if (arrived_ != nullptr) cudaEventDestroy(arrived_);
  if (counted_ != nullptr) cudaEventDestroy(counted_);
  if (beside_ != nullptr) cudaStreamDestroy(beside_);
}

absl::Status LateCopy::Init(void* from, int64_t bytes) {
  from_ = from;
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Pinned(bytes));
  MOERT_RETURN_IF_ERROR(FillNow(from, 0, static_cast<size_t>(bytes)));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&counted_, cudaEventDisableTiming));
  return MOERT_CUDA_STATUS(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming));
}

absl::Status LateCopy::Bring(cudaStream_t stream) {
  if (under_way_) return absl::OkStatus();
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(counted_, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(beside_, counted_, 0));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(memory_.data(), from_,
                                             static_cast<size_t>(memory_.bytes()),
                                             cudaMemcpyDeviceToHost, beside_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(arrived_, beside_));
  under_way_ = true;
  return absl::OkStatus();
}

const std::byte* LateCopy::Take() {
  if (!under_way_ || QueryEvent(arrived_) != cudaSuccess) return nullptr;
  under_way_ = false;
  return memory_.data();
}

}  // namespace moert::cuda
