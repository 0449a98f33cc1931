// The GPU that computes: ggml's CUDA device behind a buffer type and a device of ours, so that
// llama.cpp's scheduler assigns layers of experts to this backend and leaves activations on the
// GPU.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_GPU_H_
#define MOERT_EXAMPLES_GGML_BACKEND_GPU_H_

#include <ggml-backend-impl.h>
#include <ggml-backend.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "cuda_stream.h"

namespace moert_ggml {

/// State of the process.
class Gpu {
 public:
  /// The first CUDA device of the host; null: none is usable. Call it only after all backends of
  /// the host are loaded.
  static Gpu* Get();
  /// Makes Get return null from now on: contexts that are made later compute on the CPU.
  static void GiveUp();
  /// As Get, but after GiveUp too.
  static Gpu* Device();

  ggml_backend_dev_t device() const { return device_; }
  int ordinal() const { return 0; }
  /// The stream of all layer calls, one call at a time: its user holds the lock.
  CudaStream* stream() const { return stream_.get(); }
  std::mutex& mutex() { return mutex_; }

  /// CUDA's own buffer type at an address of ours. CUDA accepts such buffers as its own, while the
  /// scheduler takes the type for another backend's, so that our nodes stay ours. The host waits
  /// for the device before it reads or writes such buffers.
  ggml_backend_buffer_type_t compute_type() { return &compute_type_; }
  ggml_backend_buffer_type_t cuda_type() const { return cuda_type_; }
  /// The type of host memory that the device reads and writes fastest.
  ggml_backend_buffer_type_t host_type() const { return host_type_; }
  /// Whether the device computes in host memory, like a test's device.
  bool in_host_memory() const { return ggml_backend_buft_is_host(cuda_type_); }
  /// A buffer that stands for device memory of other owners, such as slots: CUDA asks tensors for
  /// their buffer.
  ggml_backend_buffer_t any_memory() { return any_memory_; }

  /// Copies device memory to the host, and waits.
  bool Read(void* to, const void* from, size_t bytes);
  /// Copies pinned host memory to the device, in the stream's order.
  bool Write(void* to, const void* from, size_t bytes);
  /// Whether the device can read the tensor in place in host memory.
  bool Reaches(const ggml_tensor* tensor) const;
  int64_t FreeBytes() const;
  /// Whether `backend` runs on this device.
  bool Runs(ggml_backend_t backend) const;

 private:
  Gpu() = default;
  bool Init();

  ggml_backend_dev_t device_ = nullptr;
  ggml_backend_buffer_type_t cuda_type_ = nullptr;
  ggml_backend_buffer_type_t host_type_ = nullptr;
  ggml_backend_buffer_type compute_type_ = {};
  ggml_backend_buffer_t any_memory_ = nullptr;
  std::unique_ptr<CudaStream> stream_;
  std::mutex mutex_;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_GPU_H_
