// Prefetches beside the host's stream where calls are not captured: predictions, and copies of the
// records that they list.
#ifndef MOERT_LIB_EXEC_CUDA_PREFETCH_STREAM_H_
#define MOERT_LIB_EXEC_CUDA_PREFETCH_STREAM_H_

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"

namespace moert::cuda {

/// One caller at a time, with the device current.
class PrefetchStream {
 public:
  PrefetchStream() = default;
  PrefetchStream(const PrefetchStream&) = delete;
  PrefetchStream& operator=(const PrefetchStream&) = delete;
  ~PrefetchStream() {
    if (ended_ != nullptr) {  // nobody may have joined the last ones
      AwaitEvent(predicted_);
      Await();
    }
    for (cudaEvent_t event : {begun_, predicted_, ended_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Init() {
    MOERT_RETURN_IF_ERROR(MakeUrgentStream(&stream_));
    for (cudaEvent_t* event : {&begun_, &predicted_, &ended_}) {
      MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
    return absl::OkStatus();
  }
  cudaStream_t get() const { return stream_; }

  /// Work that this gets from now on comes behind the work that `stream` has got.
  absl::Status Follow(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(begun_, stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream_, begun_, 0));
    return absl::OkStatus();
  }
  /// A prediction ends here.
  absl::Status EndPrediction() {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(predicted_, stream_));
    return absl::OkStatus();
  }
  /// The copies of what it lists do.
  absl::Status EndCopies() {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(ended_, stream_));
    return absl::OkStatus();
  }
  /// `stream` goes on behind the last prediction.
  absl::Status JoinPrediction(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, predicted_, 0));
    return absl::OkStatus();
  }
  /// And behind the last copies.
  absl::Status JoinCopies(cudaStream_t stream) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, ended_, 0));
    return absl::OkStatus();
  }
  /// The host waits for the last copies.
  cudaError_t Await() { return AwaitEvent(ended_); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begun_ = nullptr, predicted_ = nullptr, ended_ = nullptr;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_PREFETCH_STREAM_H_
