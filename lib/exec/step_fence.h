// A fence between the steps of a device: steps on several streams that share memory, and a host
// that reads or frees it.
#ifndef MOERT_LIB_EXEC_STEP_FENCE_H_
#define MOERT_LIB_EXEC_STEP_FENCE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert {

/// Thread-safe. Streams that are captured neither enter nor pass: a replay lies in another step.
class StepFence {
 public:
  virtual ~StepFence() = default;
  /// Work that `stream` gets from here on waits for the steps that have passed.
  virtual absl::Status Enter(void* stream) = 0;
  /// The end of a step: of what `stream` has been given.
  virtual absl::Status Pass(void* stream) = 0;
  /// In place of a pass that cannot be made: the next call waits for the device.
  virtual void Miss() = 0;
  /// Waits for the steps that have passed, and for nothing else.
  virtual absl::Status Await() = 0;
};

/// Unavailable without CUDA.
absl::StatusOr<std::unique_ptr<StepFence>> MakeStepFence(int device);

/// A second stream of a device beside the caller's: what it is given runs while the caller's goes
/// on. One caller at a time. Calls can be captured: the fork and the join are then edges of the
/// graph.
class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual void* get() const = 0;
  /// Work that the side stream gets from here on waits for the work that `stream` has got.
  virtual absl::Status Fork(void* stream) = 0;
  /// The other way round.
  virtual absl::Status Join(void* stream) = 0;
};

/// Makes a stream of the device, ahead of its other streams.
absl::StatusOr<std::unique_ptr<SideStream>> MakeSideStream(int device);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_STEP_FENCE_H_
