#include "exec/cuda/cuda_api.h"

#include <atomic>
#include <cstdlib>

#include "base/bytes_text.h"
#include "fmt/format.h"

namespace moert::cuda {
namespace {

std::atomic<int64_t> pinning_limit{-1};

}  // namespace

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
  if (const int64_t limit = pinning_limit.load(); limit >= 0) {
    if (bytes > limit) {
      return absl::ResourceExhaustedError(
          fmt::format("pinning {} of host memory is refused", BytesText(bytes)));
    }
    pinning_limit.store(limit - bytes);
  }
  if (const cudaError_t error =
          cudaHostAlloc(&p, static_cast<size_t>(bytes), cudaHostAllocPortable);
      error != cudaSuccess) {
    cudaGetLastError();
    return ToStatus(error, fmt::format("pinning {} of host memory", BytesText(bytes)).c_str());
  }
  b.data_ = static_cast<std::byte*>(p);
  b.bytes_ = bytes;
  b.kind_ = Kind::kPinned;
  return b;
}

absl::StatusOr<Buffer> Buffer::Pageable(int64_t bytes) {
  constexpr size_t kAlignment = 4096;
  const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  Buffer b;
  b.data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (b.data_ == nullptr) {
    return absl::ResourceExhaustedError(
        fmt::format("no memory for {} of staging", BytesText(bytes)));
  }
  b.bytes_ = bytes;
  b.kind_ = Kind::kPageable;
  return b;
}

void Buffer::LimitPinning(int64_t bytes) { pinning_limit.store(bytes); }

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  switch (kind_) {
    case Kind::kDevice:
      cudaFree(data_);
      break;
    case Kind::kPinned:
      cudaFreeHost(data_);
      break;
    case Kind::kPageable:
      std::free(data_);
      break;
  }
}

}  // namespace moert::cuda
