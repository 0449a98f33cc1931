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

}  // namespace moert

#endif  // MOERT_LIB_EXEC_STEP_FENCE_H_
