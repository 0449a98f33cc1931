// Threads take turns with streams and memory of a device: a lane for each call under way.
#ifndef MOERT_LIB_OFFLINE_CUDA_LANES_H_
#define MOERT_LIB_OFFLINE_CUDA_LANES_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"
#include "offline/cuda/staging.h"

namespace moert::offline {

/// Makes a buffer, of the device or what `make` makes, at least so large. Its former contents are
/// lost.
inline absl::Status Grow(
    cuda::Buffer* buffer, int64_t bytes,
    absl::StatusOr<cuda::Buffer> (*make)(int64_t bytes) = cuda::Buffer::Device) {
  if (buffer->bytes() >= bytes) return absl::OkStatus();
  *buffer = cuda::Buffer();  // first, so that both need not fit
  MOERT_ASSIGN_OR_RETURN(*buffer, make(bytes));
  return absl::OkStatus();
}

/// A stream of the current device, and the way of its copies.
struct LaneStream {
  LaneStream() = default;
  LaneStream(const LaneStream&) = delete;
  LaneStream& operator=(const LaneStream&) = delete;
  ~LaneStream() {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }

  /// As Staging has it, of `count` elements.
  template <typename T>
  absl::Status Upload(const T* from, int64_t count, T* to) {
    return staging.Upload(from, count * static_cast<int64_t>(sizeof(T)), to, stream);
  }
  template <typename T>
  absl::Status Download(const T* from, int64_t count, T* to) {
    return staging.Download(from, count * static_cast<int64_t>(sizeof(T)), to, stream);
  }

  cudaStream_t stream = nullptr;
  Staging staging;
};

/// Lanes of a type that derives from LaneStream. Thread-safe but for Init and Clear, which need
/// the device to be current.
template <typename Lane>
class Lanes {
 public:
  absl::Status Init(int count) {
    for (int i = 0; i < count; ++i) {
      auto lane = std::make_unique<Lane>();
      MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking));
      Return(lane.get());
      lanes_.push_back(std::move(lane));
    }
    return absl::OkStatus();
  }
  void Clear() { lanes_.clear(); }

  /// Waits for one that is free.
  Lane* Take() {
    const MutexLock lock(&mutex_);
    while (free_.empty()) returned_.Wait(&mutex_);
    Lane* const lane = free_.back();
    free_.pop_back();
    return lane;
  }
  void Return(Lane* lane) {
    {
      const MutexLock lock(&mutex_);
      free_.push_back(lane);
    }
    returned_.NotifyOne();
  }

 private:
  std::vector<std::unique_ptr<Lane>> lanes_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<Lane*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CUDA_LANES_H_
