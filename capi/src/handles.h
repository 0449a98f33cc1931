// Definitions of the opaque handles.
#ifndef MOERT_CAPI_SRC_HANDLES_H_
#define MOERT_CAPI_SRC_HANDLES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "closable_trace.h"
#include "moert.h"
#include "moert/engine.h"
#include "moert/source/expert_source.h"
#include "policy_adapter.h"

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

/// Layer calls that run while the host does something else: one thread, which the first Submit
/// starts, in the order of submission. Thread-safe.
class CallQueue {
 public:
  CallQueue();
  /// Waits for submitted calls, unless a completion of one of them destroys the queue.
  ~CallQueue();

  /// Runs `call`, completes the ticket, then calls `done` (may be null) with the result. `accepted`
  /// receives the ticket before `call` can begin, when nothing can fail any more.
  absl::Status Submit(std::function<absl::Status()> call,
                      std::function<void(const absl::Status&)> done,
                      absl::FunctionRef<void(std::shared_ptr<Ticket>)> accepted);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

/// An engine and the objects that serve it, shared by all handles that need them: hosts that
/// destroy objects in any order (garbage collectors) are safe.
struct EngineState {
  std::vector<std::shared_ptr<HostPolicies>> policies;  // of the options and of strategies
  std::shared_ptr<ClosableTrace> trace;                 // null: none
  std::unique_ptr<Engine> engine;
  bool simulates = false;  // layer calls have no hidden states
  CallQueue calls;         // dies first: its calls use the engine
  const int forks = ForkCount();

  /// In a fork of the process that made it the state is leaked: its threads do not exist there and
  /// cannot be joined.
  static std::shared_ptr<EngineState> Make() {
    return {new EngineState, [](EngineState* state) {
              if (state->forks == ForkCount()) delete state;
            }};
  }
  absl::Status CheckProcess() const {
    if (forks == ForkCount()) return absl::OkStatus();
    return absl::FailedPreconditionError("the engine was made before fork()");
  }
};

}  // namespace moert::capi

struct moert_source {
  std::shared_ptr<const moert::ExpertSource> source;
};
struct moert_engine {
  std::shared_ptr<moert::capi::EngineState> state;
};
struct moert_step {
  std::shared_ptr<moert::capi::EngineState> state;
  moert::StepId id = 0;
  int64_t rows = 0;
  // Split calls that were begun and are not finished; they may outlive the step.
  std::shared_ptr<std::atomic<int64_t>> unfinished;
};
struct moert_call {
  std::shared_ptr<moert::capi::EngineState> state;
  std::shared_ptr<moert::capi::Ticket> ticket;
  std::shared_ptr<std::atomic<int64_t>> unfinished;  // its step's
};
struct moert_lease {
  std::shared_ptr<moert::capi::EngineState> state;
  moert::LeaseId id = 0;
};

#endif  // MOERT_CAPI_SRC_HANDLES_H_
