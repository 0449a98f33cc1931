// The CUDA runtime in the library's terms: errors as Status, memory and events with owners.
#ifndef MOERT_LIB_EXEC_CUDA_CUDA_API_H_
#define MOERT_LIB_EXEC_CUDA_CUDA_API_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert::cuda {

/// OK for cudaSuccess; ResourceExhausted when memory ran out, Unavailable without driver or device.
absl::Status ToStatus(int error, const char* what);

#define MOERT_CUDA_STATUS(call) ::moert::cuda::ToStatus(static_cast<int>(call), #call)
#define MOERT_CUDA_RETURN_IF_ERROR(call)                                                \
  do {                                                                                  \
    const int moert_cuda_error = static_cast<int>(call);                                \
    if (moert_cuda_error != 0) return ::moert::cuda::ToStatus(moert_cuda_error, #call); \
  } while (false)

/// Device or host memory. Made and freed without touching captures of other threads.
class Buffer {
 public:
  Buffer() = default;
  static absl::StatusOr<Buffer> Device(int64_t bytes);
  static absl::StatusOr<Buffer> Pinned(int64_t bytes);
  /// Used if pinning is refused. The driver stages copies from it, and the caller waits for that.
  static absl::StatusOr<Buffer> Pageable(int64_t bytes);
  /// For tests: limits the bytes that may be pinned from now on; -1: no limit but the system's.
  static void LimitPinning(int64_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  enum class Kind { kDevice, kPinned, kPageable };
  Kind kind_ = Kind::kDevice;
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

/// For a scope: calls of this thread do not end a capture that another thread is making.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Makes the runtime's context of `device` current for a scope. Calls within the scope leave
/// captures of other threads alone. The end of the scope restores the thread's own context, if it
/// had one. No other device is touched: cudaSetDevice would make a context on the device that it
/// returns to, and replace one that the host made.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  /// An error if the context could not be made. Checked once, when an engine is opened.
  const absl::Status& status() const { return status_; }

 private:
  RelaxedCapture relaxed_;
  absl::Status status_;
};

/// Whether work given to the stream is recorded into a graph.
absl::StatusOr<bool> IsCapturing(void* stream);
/// cudaMemset and cudaMemcpy on a stream of their own, complete when they return. The default
/// stream would wait for the host's blocking streams, and end their captures.
absl::Status FillNow(void* to, int value, size_t bytes);
absl::Status CopyNow(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);

/// cudaEventQuery, without effect on captures of other threads. Does not leave cudaErrorNotReady as
/// the last error, which the host's next check would find.
cudaError_t QueryEvent(cudaEvent_t event);
/// cudaEventSynchronize, likewise.
cudaError_t AwaitEvent(cudaEvent_t event);

/// Makes a nonblocking stream of the highest priority on the current device, for work that other
/// streams wait for.
absl::Status MakeUrgentStream(cudaStream_t* stream);
/// cudaDeviceSynchronize. Waits for other engines and the host too. While any thread captures a
/// stream of the device it fails, leaves no last error, and ends that capture. So use it only for
/// work that no event stands for.
cudaError_t AwaitDevice();

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CUDA_API_H_
