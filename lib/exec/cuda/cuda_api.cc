#include "exec/cuda/cuda_api.h"

#include <cuda.h>

#include <atomic>
#include <cstdlib>

#include "base/bytes_text.h"
#include "base/errors.h"
#include "fmt/format.h"

namespace moert::cuda {
namespace {

std::atomic<int64_t> pinning_limit{-1};

/// The driver's calls for contexts, found at run time: the library does not link the driver.
struct Contexts {
  decltype(&cuInit) init = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  absl::Status status;

  template <typename F>
  void Find(const char* name, F* f) {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &result);
    if (error == cudaSuccess && result == cudaDriverEntryPointSuccess && p != nullptr) {
      *f = reinterpret_cast<F>(p);
    } else {
      status.Update(Unavailable("CUDA: this driver has no {}", name));
    }
  }
  Contexts() {
    Find("cuInit", &init);
    Find("cuDevicePrimaryCtxRetain", &retain);
    Find("cuCtxPushCurrent", &push);
    Find("cuCtxPopCurrent", &pop);
    if (status.ok()) init(0);  // again: it has no effect
  }
};

const Contexts& Driver() {
  static const Contexts contexts;
  return contexts;
}

// Retains the device's context for the life of the process, as the runtime retains those it uses.
absl::StatusOr<CUcontext> PrimaryContext(int device) {
  constexpr int kMostDevices = 128;
  static std::atomic<CUcontext> retained[kMostDevices];
  if (device < 0 || device >= kMostDevices) {
    return InvalidArgument("CUDA: device {} does not exist", device);
  }
  CUcontext context = retained[device].load(std::memory_order_acquire);
  if (context != nullptr) return context;
  if (!Driver().status.ok()) return Driver().status;
  if (Driver().retain(&context, device) != CUDA_SUCCESS) {
    return Unavailable("CUDA: device {} gives no context", device);
  }
  retained[device].store(context, std::memory_order_release);
  return context;
}

/// Runs `enqueue` on a stream of its own, and waits for it.
template <typename Enqueue>
absl::Status OnOwnStream(const char* what, const Enqueue& enqueue) {
  const RelaxedCapture relaxed;
  cudaStream_t stream = nullptr;
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaError_t error = enqueue(stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  return ToStatus(error, what);
}

}  // namespace

DeviceScope::DeviceScope(int device) {
  const absl::StatusOr<CUcontext> context = PrimaryContext(device);
  if (!context.ok()) {
    status_ = context.status();
  } else if (Driver().push(*context) != CUDA_SUCCESS) {
    status_ = Unavailable("CUDA: device {} gives no context", device);
  }
}

DeviceScope::~DeviceScope() {
  CUcontext ours = nullptr;
  if (status_.ok()) Driver().pop(&ours);
}

absl::Status ToStatus(int error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // reported here: the host's next check must not find it
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
  const RelaxedCapture relaxed;
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
  const RelaxedCapture relaxed;
  Buffer b;
  void* p = nullptr;
  if (const int64_t limit = pinning_limit.load(); limit >= 0) {
    if (bytes > limit) {
      return ResourceExhausted("pinning {} of host memory is refused", BytesText(bytes));
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
  if (b.data_ == nullptr) return ResourceExhausted("no memory for {} of staging", BytesText(bytes));
  b.bytes_ = bytes;
  b.kind_ = Kind::kPageable;
  return b;
}

void Buffer::LimitPinning(int64_t bytes) { pinning_limit.store(bytes); }

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (kind_ == Kind::kPageable) {
    std::free(data_);
    return;
  }
  const RelaxedCapture relaxed;
  if (kind_ == Kind::kDevice) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

absl::StatusOr<bool> IsCapturing(void* stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture));
  return capture != cudaStreamCaptureStatusNone;
}

absl::Status FillNow(void* to, int value, size_t bytes) {
  return OnOwnStream("filling device memory", [&](cudaStream_t stream) {
    return cudaMemsetAsync(to, value, bytes, stream);
  });
}

absl::Status CopyNow(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return OnOwnStream("copying to or from the device", [&](cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
  });
}

cudaError_t QueryEvent(cudaEvent_t event) {
  const RelaxedCapture relaxed;
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) cudaGetLastError();
  return error;
}

cudaError_t AwaitEvent(cudaEvent_t event) {
  const RelaxedCapture relaxed;
  const cudaError_t error = cudaEventSynchronize(event);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

absl::Status MakeUrgentStream(cudaStream_t* stream) {
  int lowest = 0, highest = 0;
  MOERT_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return MOERT_CUDA_STATUS(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest));
}

cudaError_t AwaitDevice() {
  const RelaxedCapture relaxed;
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace moert::cuda
