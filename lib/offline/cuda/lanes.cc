#include "offline/cuda/lanes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "base/status_macros.h"

namespace moert::offline {

absl::StatusOr<cuda::Buffer> PinnedOrPageable(int64_t bytes) {
  auto pinned = cuda::Buffer::Pinned(bytes);
  return pinned.ok() ? std::move(pinned) : cuda::Buffer::Pageable(bytes);
}

Staging::~Staging() {
  for (const cudaEvent_t event : copied_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

absl::Status Staging::Begin() {
  for (cudaEvent_t& event : copied_) {
    if (event != nullptr) continue;
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  if (memory_.bytes() > 0) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(memory_, PinnedOrPageable(2 * kHalfBytes));
  return absl::OkStatus();
}

absl::Status Staging::Upload(const void* from, int64_t bytes, void* to, cudaStream_t stream) {
  MOERT_RETURN_IF_ERROR(Begin());
  for (int64_t at = 0; at < bytes; at += kHalfBytes, half_ ^= 1) {
    const auto size = static_cast<size_t>(std::min(kHalfBytes, bytes - at));
    MOERT_CUDA_RETURN_IF_ERROR(cuda::AwaitEvent(copied_[half_]));
    std::memcpy(Half(half_), static_cast<const std::byte*>(from) + at, size);
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, Half(half_), size,
                                               cudaMemcpyHostToDevice, stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(copied_[half_], stream));
  }
  return absl::OkStatus();
}

absl::Status Staging::Download(const void* from, int64_t bytes, void* to, cudaStream_t stream) {
  MOERT_RETURN_IF_ERROR(Begin());
  const auto size_of = [bytes](int64_t part) {
    return static_cast<size_t>(std::min(kHalfBytes, bytes - part * kHalfBytes));
  };
  const int64_t parts = CeilDiv(bytes, kHalfBytes);
  const auto half_of = [this](int64_t part) { return static_cast<int>((half_ + part) % 2); };
  // The copy of a part is started before the previous part is taken out of the other half. The
  // former contents of a half are no longer needed then: uploads from it precede this copy in the
  // stream.
  for (int64_t part = 0; part <= parts && parts > 0; ++part) {
    if (part < parts) {
      const int half = half_of(part);
      MOERT_CUDA_RETURN_IF_ERROR(
          cudaMemcpyAsync(Half(half), static_cast<const std::byte*>(from) + part * kHalfBytes,
                          size_of(part), cudaMemcpyDeviceToHost, stream));
      MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(copied_[half], stream));
    }
    if (part == 0) continue;
    const int64_t taken = part - 1;
    const int half = half_of(taken);
    MOERT_CUDA_RETURN_IF_ERROR(cuda::AwaitEvent(copied_[half]));
    std::memcpy(static_cast<std::byte*>(to) + taken * kHalfBytes, Half(half), size_of(taken));
  }
  return absl::OkStatus();
}

}  // namespace moert::offline
