#include "exec/cuda/memory/read_copies.h"

#include <algorithm>

#include "base/checked_math.h"
#include "base/exception_status.h"
#include "base/status_macros.h"

namespace moert::cuda {
namespace {

constexpr size_t kMostStaging = 16;  // two halves: one is read while the other one is copied

}  // namespace

ReadCopies::~ReadCopies() {
  for (Staging& staging : staging_) {
    if (staging.left == nullptr) continue;
    AwaitEvent(staging.left);
    cudaEventDestroy(staging.left);
  }
}

absl::Status ReadCopies::Free(Staging* staging, int64_t bytes) {
  if (staging->left == nullptr) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&staging->left, cudaEventDisableTiming));
  }
  MOERT_CUDA_RETURN_IF_ERROR(AwaitEvent(staging->left));
  if (staging->buffer.bytes() >= bytes) return absl::OkStatus();
  absl::StatusOr<Buffer> buffer = Buffer::Pinned(bytes);
  if (!buffer.ok()) buffer = Buffer::Pageable(bytes);  // slower
  MOERT_RETURN_IF_ERROR(buffer.status());
  staging->buffer = *std::move(buffer);
  return absl::OkStatus();
}

absl::Status ReadCopies::Enqueue(const ExpertSource& source, int version, ThreadPool* pool,
                                 cudaStream_t stream) {
  staging_.resize(std::max(staging_.size(), std::min(copies_.size(), kMostStaging)));
  const size_t half = std::max<size_t>(1, staging_.size() / 2);
  for (size_t first = 0; first < copies_.size(); first += half) {
    const size_t count = std::min(half, copies_.size() - first);
    Staging* const staging = staging_.data() + first % (2 * half);
    const auto bytes = [&](size_t i) {
      const ExpertKey key = copies_[first + i].key;
      return source.layout(key.layer, key.expert, version).bytes;
    };
    for (size_t i = 0; i < count; ++i) {
      MOERT_RETURN_IF_ERROR(Free(staging + i, RoundUp(bytes(i), kRecordAlignment)));
    }
    read_.assign(count, absl::OkStatus());
    pool->Run(static_cast<int64_t>(count), [&](int64_t job, int) {
      const auto i = static_cast<size_t>(job);
      const ExpertKey key = copies_[first + i].key;
      try {
        read_[i] = source.ReadRecord(
            key.layer, key.expert, version,
            {staging[i].buffer.data(), static_cast<size_t>(RoundUp(bytes(i), kRecordAlignment))});
      } catch (...) {
        read_[i] = ExceptionStatus("reading a record");
      }
    });
    for (size_t i = 0; i < count; ++i) {
      MOERT_RETURN_IF_ERROR(read_[i]);
      MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(copies_[first + i].to, staging[i].buffer.data(),
                                                 static_cast<size_t>(bytes(i)),
                                                 cudaMemcpyHostToDevice, stream));
      MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(staging[i].left, stream));
    }
  }
  return absl::OkStatus();
}

}  // namespace moert::cuda
