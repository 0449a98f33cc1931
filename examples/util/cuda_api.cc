#include "util/cuda_api.h"

#include <fmt/format.h>

#include <string>

#include "util/bytes_text.h"

namespace moert::gpu {

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      fmt::format("CUDA: {} ({}) in {}", cudaGetErrorString(error), cudaGetErrorName(error), what);
  switch (error) {
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
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
      error != cudaSuccess) {
    cudaGetLastError();
    const std::string what = fmt::format("allocating {} of device memory", util::BytesText(bytes));
    return ToStatus(error, what.c_str());
  }
  Buffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

absl::StatusOr<Buffer> Buffer::Pinned(int64_t bytes) {
  void* data = nullptr;
  if (const cudaError_t error =
          cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable);
      error != cudaSuccess) {
    cudaGetLastError();
    const std::string what = fmt::format("pinning {} of host memory", util::BytesText(bytes));
    return ToStatus(error, what.c_str());
  }
  Buffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  buffer.pinned_ = true;
  return buffer;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (pinned_) {
    cudaFreeHost(data_);
  } else {
    cudaFree(data_);
  }
}

}  // namespace moert::gpu
