// CudaExecutor: calls whose product is the host's.
#include "base/status_macros.h"
#include "exec/cuda/cuda_executor_impl.h"

namespace moert::cuda {

absl::StatusOr<const int32_t*> CudaExecutor::PlaceSlots(const ExecutorCall& call,
                                                        const GivenRouting& given,
                                                        const PolicyContext* late,
                                                        const VersionedStore& store) {
  DeviceScope scope(device_);
  return fetch_.Place(call, given, late, store);
}

absl::Status CudaExecutor::LeaveSlots(void* stream) {
  DeviceScope scope(device_);
  return fetch_.Leave(static_cast<cudaStream_t>(stream));
}

absl::Status CudaExecutor::BringHostRows(const ExecutorCall& call) {
  if (host_rows_.size() < call.hidden.rows * call.hidden.cols) {
    host_rows_ = AlignedArray<float>(parts_.max_tokens * extent_.hidden);
  }
  ++host_syncs_;
  return BringRows(call.hidden, Stream(call), rows_arrived_, host_rows_.data());
}

absl::Status CudaExecutor::ScoreNext(const ExecutorCall& call, bool /*filled*/,
                                     std::vector<float>* scores) {
  DeviceScope scope(device_);
  MOERT_RETURN_IF_ERROR(BringHostRows(call));
  return parts_.router->Score(call.layer + 1, host_rows_.data(), call.tokens, scores);
}

}  // namespace moert::cuda
