// ComputeFence: lets transfers wait for the kernels that may still read the block they overwrite.
//
// Layer calls are enqueued and their experts unpinned long before they have run. After every batch
// of kernels the executor passes the fence, which makes a new ticket. A transfer remembers the
// newest ticket at the time its block was taken. Its copy waits, on the device, for that ticket and
// not for work enqueued later, so a demand load runs beside the products of the same layer.
#ifndef MOERT_LIB_EXEC_CUDA_COMPUTE_FENCE_H_
#define MOERT_LIB_EXEC_CUDA_COMPUTE_FENCE_H_

#include <array>
#include <cstdint>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"

namespace moert::cuda {

/// Thread-safe.
class ComputeFence {
 public:
  using Ticket = int64_t;  // 0: nothing to wait for

  ComputeFence() = default;
  ComputeFence(const ComputeFence&) = delete;
  ComputeFence& operator=(const ComputeFence&) = delete;
  ~ComputeFence() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  absl::Status Init() {
    for (cudaEvent_t& event : events_) {
      MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    return absl::OkStatus();
  }

  /// Orders `stream` behind the newest ticket, because calls share buffers.
  absl::Status Enter(cudaStream_t stream) {
    const MutexLock lock(&mu_);
    MOERT_CUDA_RETURN_IF_ERROR(Recover());
    return Order(stream);
  }
  /// Makes the next ticket, which stands for everything enqueued on `stream` so far and for all
  /// earlier tickets, whatever their streams.
  absl::Status Pass(cudaStream_t stream) {
    const MutexLock lock(&mu_);
    MOERT_CUDA_RETURN_IF_ERROR(Recover());
    unpassed_ = true;
    MOERT_RETURN_IF_ERROR(Order(stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(events_[(last_ + 1) % kEvents], stream));
    ++last_;
    stream_ = stream;
    unpassed_ = false;
    return absl::OkStatus();
  }
  /// Called instead of Pass if the pass could not be made.
  void Miss() {
    const MutexLock lock(&mu_);
    unpassed_ = true;
  }
  Ticket Now() const {
    const MutexLock lock(&mu_);
    return last_;
  }
  /// Blocks until the newest ticket is done. This covers graphs that the host launches: they lie in
  /// steps, and the end of a step passes the fence. Waiting for the whole device instead would end
  /// captures of other threads.
  cudaError_t Await() {
    const MutexLock lock(&mu_);
    if (unpassed_) return Recover();
    return last_ > 0 ? AwaitEvent(events_[last_ % kEvents]) : cudaSuccess;
  }
  /// Whether the ticket is done. Does not wait.
  bool Passed(Ticket ticket) {
    if (ticket == 0) return true;
    const MutexLock lock(&mu_);
    return QueryEvent(events_[ticket % kEvents]) == cudaSuccess;
  }
  /// Work enqueued on `stream` from now on waits for the ticket. If its event has been recorded
  /// again since, the wait is for a later ticket, which includes it.
  absl::Status Wait(Ticket ticket, cudaStream_t stream) {
    if (ticket == 0) return absl::OkStatus();
    const MutexLock lock(&mu_);
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, events_[ticket % kEvents], 0));
    return absl::OkStatus();
  }

 private:
  /// After a failed pass no ticket stands for the work of its stream, and the stream may be gone:
  /// so this waits for the whole device.
  cudaError_t Recover() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const cudaError_t error = unpassed_ ? AwaitDevice() : cudaSuccess;
    if (error == cudaSuccess) unpassed_ = false;
    return error;
  }
  absl::Status Order(cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (last_ == 0 || stream == stream_) return absl::OkStatus();
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, events_[last_ % kEvents], 0));
    return absl::OkStatus();
  }

  static constexpr int kEvents = 256;
  mutable Mutex mu_;
  std::array<cudaEvent_t, kEvents> events_{};  // made by Init, recorded under mu_
  Ticket last_ ABSL_GUARDED_BY(mu_) = 0;
  cudaStream_t stream_ ABSL_GUARDED_BY(mu_) = nullptr;  // the stream of the last pass
  bool unpassed_ ABSL_GUARDED_BY(mu_) = false;          // a pass failed, or was missed
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_COMPUTE_FENCE_H_
