// Definitions of the opaque handles.
#ifndef MOERT_CAPI_SRC_HANDLES_H_
#define MOERT_CAPI_SRC_HANDLES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fork.h"
#include "call_queue.h"
#include "closable_trace.h"
#include "moert.h"
#include "moert/engine.h"
#include "moert/source/expert_source.h"
#include "policy_adapter.h"

namespace moert::capi {

/// An engine and what serves it, shared by all handles that need them: a host whose objects die in
/// any order (garbage collectors) is safe.
struct EngineState {
  std::vector<std::shared_ptr<HostPolicies>> policies;  // of the options and of strategies
  std::shared_ptr<ClosableTrace> trace;                 // null: none
  std::unique_ptr<Engine> engine;
  bool simulates = false;  // layer calls have no hidden states
  CallQueue calls;         // dies first: its calls use the engine
  const int forks = ForkCount();

  /// In a fork of the process that made it, it is left as it is: threads that could be joined are
  /// not there.
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
