// Copies between a caller's memory and a device by way of pinned memory, which the copy engine
// reads and writes by itself. The CPU fills or empties one half while the other travels.
#ifndef MOERT_LIB_OFFLINE_CUDA_STAGING_H_
#define MOERT_LIB_OFFLINE_CUDA_STAGING_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/cuda/cuda_api.h"

namespace moert::offline {

/// Pageable memory where pinning is refused: the driver stages its copies, only slower.
absl::StatusOr<cuda::Buffer> PinnedOrPageable(int64_t bytes);

/// Stages copies on one stream, whose device is current. After an error the stream is to be waited
/// for before the
/// next call, and before this goes.
class Staging {
 public:
  static constexpr int64_t kHalfBytes = int64_t{2} << 20;

  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  /// to = from, to on the device, in the order of the stream. `from` is read until this returns.
  absl::Status Upload(const void* from, int64_t bytes, void* to, cudaStream_t stream);
  /// to = from, from on the device, behind what is enqueued; waits for it. After an error `to`
  /// holds some of it; of up to kHalfBytes, nothing.
  absl::Status Download(const void* from, int64_t bytes, void* to, cudaStream_t stream);

 private:
  absl::Status Begin();
  std::byte* Half(int half) const { return memory_.data() + half * kHalfBytes; }

  cuda::Buffer memory_;         // two halves, from the first copy on
  cudaEvent_t copied_[2] = {};  // a half's last copy has ended
  int half_ = 0;                // the next
};

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CUDA_STAGING_H_
