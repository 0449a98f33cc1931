// One rank of an NCCL communicator in which every wait is bounded. Its calls return at once and are
// polled. A thread watches the enqueued work and aborts the communicator when that is late, so that
// its kernels end and waits for the stream return.
#ifndef MOERT_LIB_PARALLEL_NCCL_COMMUNICATOR_H_
#define MOERT_LIB_PARALLEL_NCCL_COMMUNICATOR_H_

#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/exception_status.h"
#include "base/mutex.h"
#include "fmt/format.h"
#include "moert/parallel/collectives.h"
#include "parallel/nccl_api.h"

namespace moert {

/// Thread-safe.
class NcclCommunicator {
 public:
  /// `context`: the retained context of `device`; the destructor releases it.
  NcclCommunicator(const NcclApi* api, const NcclOptions& options, int device, CudaContext context)
      : api_(api), o_(options), device_(device), context_(context) {}
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  /// Waits for the other ranks.
  absl::Status Init();

  /// Runs call(communicator), which enqueues on the stream.
  absl::Status Enqueue(const char* what, CudaStream stream,
                       absl::FunctionRef<NcclResult(NcclComm)> call);
  /// See Collectives.
  absl::Status Wait(CudaStream stream, int64_t timeout_ns);
  void Abort(const absl::Status& why) {
    const MutexLock lock(&mu_);
    AbortLocked(why);
  }
  /// Reports an error of the driver in the caller's own work for a call, as if the call had failed.
  absl::Status DriverFailed(const char* what, int error) {
    const MutexLock lock(&mu_);
    return GiveUp(absl::StatusCode::kInternal, "{}: CUDA error {}", what, error);
  }
  CudaContext context() const { return context_; }

 private:
  struct Pending {
    const char* what;
    CudaEvent event;
    std::chrono::steady_clock::time_point deadline;
  };

  absl::Status Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Borrow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Polls until a call is no longer in progress.
  absl::Status Settle(const char* what, NcclResult result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Note(const char* what, CudaStream stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Watch();
  void CheckPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AsyncError() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Fail(const char* what, NcclResult result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename... Args>
  absl::Status GiveUp(absl::StatusCode code, fmt::format_string<Args...> text, Args&&... args)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    AbortLocked(ErrorOr(code, [&] {
      return absl::Status(code, fmt::format("NCCL: rank {} of {}: {}", o_.rank, o_.size,
                                            fmt::format(text, std::forward<Args>(args)...)));
    }));
    return failure_;
  }

  const NcclApi* const api_;
  const NcclOptions o_;
  const int device_;
  const CudaContext context_;

  Mutex mu_;
  CondVar changed_;
  NcclComm comm_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // once set, stays
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);
  std::vector<CudaEvent> events_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watch_;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_NCCL_COMMUNICATOR_H_
