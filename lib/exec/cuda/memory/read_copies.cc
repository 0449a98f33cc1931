#include "exec/cuda/memory/read_copies.h"

#include <algorithm>

#include "base/status_macros.h"

namespace moert::cuda {
namespace {

constexpr size_t kMostStaging = 16;  // two halves: one is filled while the other one is copied

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
    reads_.clear();
    for (size_t i = 0; i < count; ++i) {
      const ExpertKey key = copies_[first + i].key;
      const int64_t bytes = PlaceBytes(source, key.layer, key.expert, version);
      MOERT_RETURN_IF_ERROR(Free(staging + i, bytes));
      reads_.push_back({key.layer, key.expert, staging[i].buffer.data()});
    }
    ReadRecords(source, version, reads_, pool, &done_);
    for (size_t i = 0; i < count; ++i) {
      MOERT_RETURN_IF_ERROR(done_[i]);
      const int64_t bytes = source.layout(reads_[i].layer, reads_[i].expert, version).bytes;
      MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(copies_[first + i].to, reads_[i].to,
                                                 static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                                 stream));
      MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(staging[i].left, stream));
    }
  }
  return absl::OkStatus();
}

}  // namespace moert::cuda
