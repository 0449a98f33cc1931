#include "backend/cuda/cuda_api.h"

#include "base/bytes_text.h"
#include "fmt/format.h"

namespace moert::cuda {

absl::Status ToStatus(int error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  const std::string message =
      fmt::format("CUDA: {} ({}) in {}", cudaGetErrorString(code), cudaGetErrorName(code), what);
  switch (code) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<Buffer> Buffer::Device(int64_t bytes) {
  Buffer b;
  void* p = nullptr;
  if (const cudaError_t error = cudaMalloc(&p, static_cast<size_t>(bytes)); error != cudaSuccess) {
    cudaGetLastError();
    return ToStatus(error, fmt::format("allocating {} of device memory", BytesText(bytes)).c_str());
  }
  b.data_ = static_cast<std::byte*>(p);
  b.bytes_ = bytes;
  return b;
}

absl::StatusOr<Buffer> Buffer::Pinned(int64_t bytes) {
  Buffer b;
  void* p = nullptr;
  if (const cudaError_t error =
          cudaHostAlloc(&p, static_cast<size_t>(bytes), cudaHostAllocPortable);
      error != cudaSuccess) {
    cudaGetLastError();
    return ToStatus(error, fmt::format("pinning {} of host memory", BytesText(bytes)).c_str());
  }
  b.data_ = static_cast<std::byte*>(p);
  b.bytes_ = bytes;
  b.pinned_ = true;
  return b;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (pinned_) {
    cudaFreeHost(data_);
  } else {
    cudaFree(data_);
  }
}

}  // namespace moert::cuda
