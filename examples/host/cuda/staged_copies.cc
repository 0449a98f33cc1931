#include "host/cuda/staged_copies.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace moert::host {

StagedCopies::~StagedCopies() {
  for (const cudaEvent_t event : copied_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

absl::Status StagedCopies::Begin() {
  if (memory_ != nullptr) return absl::OkStatus();
  for (cudaEvent_t& event : copied_) {
    if (event != nullptr) continue;
    RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  auto pinned = gpu::Buffer::Pinned(2 * kHalf * static_cast<int64_t>(sizeof(float)));
  if (pinned.ok()) {
    pinned_ = *std::move(pinned);
    memory_ = reinterpret_cast<float*>(pinned_.data());
    return absl::OkStatus();
  }
  try {
    pageable_.resize(2 * kHalf);
  } catch (const std::bad_alloc&) {
    return pinned.status();
  }
  memory_ = pageable_.data();
  return absl::OkStatus();
}

absl::Status StagedCopies::Upload(const float* from, int64_t count, float* to,
                                  cudaStream_t stream) {
  if (absl::Status status = Begin(); !status.ok()) return status;
  for (int64_t at = 0; at < count; at += kHalf, ++turn_) {
    const auto bytes = static_cast<size_t>(std::min(kHalf, count - at)) * sizeof(float);
    float* const half = Half(turn_ % 2);
    RETURN_IF_CUDA_ERROR(cudaEventSynchronize(copied_[turn_ % 2]));
    std::memcpy(half, from + at, bytes);
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to + at, half, bytes, cudaMemcpyHostToDevice, stream));
    RETURN_IF_CUDA_ERROR(cudaEventRecord(copied_[turn_ % 2], stream));
  }
  return absl::OkStatus();
}

absl::Status StagedCopies::Download(const float* from, int64_t count, float* to,
                                    cudaStream_t stream) {
  if (absl::Status status = Begin(); !status.ok()) return status;
  // A part's copy is enqueued before the previous part is taken out of the other half. Uploads from
  // a half precede these copies in the stream.
  for (int64_t asked = 0, taken = 0; taken < count; ++turn_) {
    if (asked < count) {
      const int64_t size = std::min(kHalf, count - asked);
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(Half(turn_ % 2), from + asked,
                                           static_cast<size_t>(size) * sizeof(float),
                                           cudaMemcpyDeviceToHost, stream));
      RETURN_IF_CUDA_ERROR(cudaEventRecord(copied_[turn_ % 2], stream));
      asked += size;
      if (asked == size) continue;  // the first
    }
    const int64_t before = (turn_ + 1) % 2, size = std::min(kHalf, count - taken);
    RETURN_IF_CUDA_ERROR(cudaEventSynchronize(copied_[before]));
    std::memcpy(to + taken, Half(before), static_cast<size_t>(size) * sizeof(float));
    taken += size;
  }
  return absl::OkStatus();
}

}  // namespace moert::host
