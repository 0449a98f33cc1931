// The CUDA runtime with errors as Status, and memory with an owner.
#ifndef MOERT_EXAMPLES_UTIL_CUDA_API_H_
#define MOERT_EXAMPLES_UTIL_CUDA_API_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert::gpu {

/// OK for cudaSuccess; ResourceExhausted when memory ran out, Unavailable without driver or device.
absl::Status ToStatus(cudaError_t error, const char* what);

#define RETURN_IF_CUDA_ERROR(call)                                                     \
  do {                                                                                 \
    const auto cuda_error_ = static_cast<cudaError_t>(call);                           \
    if (cuda_error_ != cudaSuccess) return ::moert::gpu::ToStatus(cuda_error_, #call); \
  } while (false)

/// Device memory, or page-locked host memory.
class Buffer {
 public:
  Buffer() = default;
  static absl::StatusOr<Buffer> Device(int64_t bytes);
  static absl::StatusOr<Buffer> Pinned(int64_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(pinned_, other.pinned_);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool pinned_ = false;
};

/// Cuts typed arrays out of one allocation. With a null base it only counts bytes.
class Carver {
 public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    T* at = reinterpret_cast<T*>(base_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

/// Makes `device` current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : device_(device), before_(device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device_) cudaSetDevice(device_);
  }
  ~DeviceScope() {
    if (before_ != device_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const int device_;
  int before_;
};

}  // namespace moert::gpu

#endif  // MOERT_EXAMPLES_UTIL_CUDA_API_H_
