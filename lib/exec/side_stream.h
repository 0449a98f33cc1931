// A second stream of a device beside the caller's: what it is given runs while the caller's goes
// on.
#ifndef MOERT_LIB_EXEC_SIDE_STREAM_H_
#define MOERT_LIB_EXEC_SIDE_STREAM_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert {

/// One caller at a time. Calls can be captured: the fork and the join are then edges of the graph.
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

#endif  // MOERT_LIB_EXEC_SIDE_STREAM_H_
