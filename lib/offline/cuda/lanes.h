// Lanes: streams and memory of a device that threads take turns to use, one for each call under
// way.
#ifndef MOERT_LIB_OFFLINE_CUDA_LANES_H_
#define MOERT_LIB_OFFLINE_CUDA_LANES_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"

namespace moert::offline {

/// Memory for copies between a caller's memory and a device, which the copy engine accesses by
/// itself: the CPU fills or empties one half while the other is copied. Pageable memory if pinning
/// is refused: the driver then stages the copies, more slowly.
absl::StatusOr<cuda::Buffer> PinnedOrPageable(int64_t bytes);

/// Stages copies on one stream, whose device is current. After an error, wait for the stream before
/// the next call and before destruction.
class Staging {
 public:
  static constexpr int64_t kHalfBytes = int64_t{2} << 20;

  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  /// Copies `from` to `to` on the device, in stream order. `from` is read until this returns.
  absl::Status Upload(const void* from, int64_t bytes, void* to, cudaStream_t stream);
  /// Copies `from` on the device to `to`, after the work enqueued so far, and waits. After an error
  /// `to` holds a part of it; nothing of a copy of up to kHalfBytes.
  absl::Status Download(const void* from, int64_t bytes, void* to, cudaStream_t stream);

 private:
  absl::Status Begin();
  std::byte* Half(int half) const { return memory_.data() + half * kHalfBytes; }

  cuda::Buffer memory_;         // two halves, from the first copy on
  cudaEvent_t copied_[2] = {};  // a half's last copy has ended
  int half_ = 0;                // the next
};

/// Makes a buffer, in device memory or by `make`, at least this large. Its former contents are
/// lost.
inline absl::Status Grow(
    cuda::Buffer* buffer, int64_t bytes,
    absl::StatusOr<cuda::Buffer> (*make)(int64_t bytes) = cuda::Buffer::Device) {
  if (buffer->bytes() >= bytes) return absl::OkStatus();
  *buffer = cuda::Buffer();  // first, so that both need not fit
  MOERT_ASSIGN_OR_RETURN(*buffer, make(bytes));
  return absl::OkStatus();
}

/// A stream of the current device, and the staging memory of its copies.
struct LaneStream {
  LaneStream() = default;
  LaneStream(const LaneStream&) = delete;
  LaneStream& operator=(const LaneStream&) = delete;
  ~LaneStream() {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }

  /// Like Staging's copies, of `count` elements.
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

/// Lanes of a type derived from LaneStream. Thread-safe except Init and Clear, which need the
/// device to be current.
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

  /// Waits for a free lane.
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
