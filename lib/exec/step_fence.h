// A fence between the steps of a device. It orders steps on several streams that share memory, and
// lets the host wait for them before it reads or frees that memory.
#ifndef MOERT_LIB_EXEC_STEP_FENCE_H_
#define MOERT_LIB_EXEC_STEP_FENCE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert {

/// Thread-safe. Captured streams neither enter nor pass the fence, because a replay lies in another
/// step.
class StepFence {
 public:
  virtual ~StepFence() = default;
  /// Makes later work of `stream` wait for the steps that have passed.
  virtual absl::Status Enter(void* stream) = 0;
  /// Marks the end of a step, which consists of the work that `stream` has been given so far.
  virtual absl::Status Pass(void* stream) = 0;
  /// Called instead of a Pass that cannot be made: the next call then waits for the whole device.
  virtual void Miss() = 0;
  /// Blocks until the steps that have passed are done. Waits for nothing else.
  virtual absl::Status Await() = 0;
};

/// Unavailable without CUDA.
absl::StatusOr<std::unique_ptr<StepFence>> MakeStepFence(int device);

/// A second stream of a device, whose work runs beside the caller's stream. One caller at a time.
/// Calls can be captured: the fork and the join are then edges of the graph.
class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual void* get() const = 0;
  /// Makes later work of the side stream wait for the work that `stream` has been given so far.
  virtual absl::Status Fork(void* stream) = 0;
  /// Makes later work of `stream` wait for the work that the side stream has been given so far.
  virtual absl::Status Join(void* stream) = 0;
};

/// Makes a side stream, of a higher priority than other streams of the device.
absl::StatusOr<std::unique_ptr<SideStream>> MakeSideStream(int device);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_STEP_FENCE_H_
