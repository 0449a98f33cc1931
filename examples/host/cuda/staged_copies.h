// Copies between pageable memory and a device through two halves of pinned memory: the CPU fills or
// empties one half while the other is being transferred.
#ifndef MOERT_EXAMPLES_HOST_CUDA_STAGED_COPIES_H_
#define MOERT_EXAMPLES_HOST_CUDA_STAGED_COPIES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "util/cuda_api.h"

namespace moert::host {

/// Copies on one stream, whose device is current. After an error the stream must be synchronized
/// before the next call and before destruction.
class StagedCopies {
 public:
  StagedCopies() = default;
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;
  ~StagedCopies();

  /// To the device, in the order of the stream. `from` is read until this returns.
  absl::Status Upload(const float* from, int64_t count, float* to, cudaStream_t stream);
  /// From the device, after the work already enqueued; waits for the copy.
  absl::Status Download(const float* from, int64_t count, float* to, cudaStream_t stream);

 private:
  static constexpr int64_t kHalf = int64_t{1} << 19;  // floats

  absl::Status Begin();
  float* Half(int64_t half) const { return memory_ + half * kHalf; }

  gpu::Buffer pinned_;
  std::vector<float> pageable_;  // where pinning is refused
  float* memory_ = nullptr;      // two halves
  cudaEvent_t copied_[2] = {};   // the last copy of a half has ended
  int64_t turn_ = 0;             // parts copied
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_STAGED_COPIES_H_
