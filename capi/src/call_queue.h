// Layer calls that run while the host does something else: one thread, first come, first served.
#ifndef MOERT_CAPI_SRC_CALL_QUEUE_H_
#define MOERT_CAPI_SRC_CALL_QUEUE_H_

#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/mutex.h"

namespace moert::capi {

/// The result of one call. Thread-safe.
class Ticket {
 public:
  bool done() const;
  absl::Status Wait() const;
  void Complete(absl::Status status);

 private:
  mutable Mutex mu_;
  mutable CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

/// Thread-safe. The thread is started by the first Submit.
class CallQueue {
 public:
  CallQueue();
  /// Waits for calls that were submitted, unless it is destroyed by one of their completions.
  ~CallQueue();

  /// Runs `call`, completes the ticket, then calls `done` (may be null) with the result. The ticket
  /// is given to `accepted` before `call` can begin, once nothing can fail any more.
  absl::Status Submit(std::function<absl::Status()> call,
                      std::function<void(const absl::Status&)> done,
                      absl::FunctionRef<void(std::shared_ptr<Ticket>)> accepted);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_CALL_QUEUE_H_
