#include "exec/cuda/memory/copy_batch.h"

#include "absl/cleanup/cleanup.h"

namespace moert::cuda {

void CopyBatch::Add(std::byte* to, const std::byte* from, size_t bytes) {
  if (!to_.empty() && static_cast<std::byte*>(to_.back()) + bytes_.back() == to &&
      static_cast<const std::byte*>(from_.back()) + bytes_.back() == from) {
    bytes_.back() += bytes;
    return;
  }
  to_.push_back(to);
  from_.push_back(from);
  bytes_.push_back(bytes);
}

void CopyBatch::Clear() {
  to_.clear();
  from_.clear();
  bytes_.clear();
}

absl::Status CopyBatch::Enqueue(cudaStream_t stream) {
  const absl::Cleanup clear = [&] { Clear(); };
  if (to_.empty()) return absl::OkStatus();
#if CUDART_VERSION >= 12080
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;  // the first copy that the attributes apply to
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(),
                                                 to_.size(), &attributes, &first, 1, stream);
#else
  size_t failed = 0;
  const cudaError_t error =
      cudaMemcpyBatchAsync(to_.data(), const_cast<void**>(from_.data()), bytes_.data(), to_.size(),
                           &attributes, &first, 1, &failed, stream);
#endif
  // The driver is too old.
  if (error == cudaErrorCallRequiresNewerDriver || error == cudaErrorNotSupported) {
    cudaGetLastError();
    return EnqueueEach(stream);
  }
  return MOERT_CUDA_STATUS(error);
#else
  return EnqueueEach(stream);
#endif
}

absl::Status CopyBatch::EnqueueEach(cudaStream_t stream) const {
  for (size_t i = 0; i < to_.size(); ++i) {
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(to_[i], from_[i], bytes_[i], cudaMemcpyDefault, stream));
  }
  return absl::OkStatus();
}

}  // namespace moert::cuda
