// The GPU that multiplies: ggml's CUDA device, with a buffer type and a device of ours in front of
// it, so that llama.cpp's scheduler gives us layers of experts and leaves activations on the GPU.
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
  /// The first CUDA device of the host; null: there is none that can be used. Not before all
  /// backends of the host are loaded.
  static Gpu* Get();
  /// From now on Get gives null: contexts that are made later compute on the CPU.
  static void GiveUp();

  ggml_backend_dev_t device() const { return device_; }
  int ordinal() const { return 0; }
  /// The stream of all layer calls, one at a time: whoever uses it holds the lock.
  CudaStream* stream() const { return stream_.get(); }
  std::mutex& mutex() { return mutex_; }

  /// CUDA's own buffer type under an address of ours. CUDA takes such buffers for its own; the
  /// scheduler takes the type for another backend's, so that nodes of ours stay ours. The host
  /// waits for the device before it reads or writes them.
  ggml_backend_buffer_type_t compute_type() { return &compute_type_; }
  ggml_backend_buffer_type_t cuda_type() const { return cuda_type_; }
  /// The host's memory that the device reads and writes fastest.
  ggml_backend_buffer_type_t host_type() const { return host_type_; }
  /// Whether the device computes in the host's memory, as a test's does.
  bool in_host_memory() const { return ggml_backend_buft_is_host(cuda_type_); }
  /// A buffer that stands for device memory of others, such as slots: CUDA asks tensors for theirs.
  ggml_backend_buffer_t any_memory() { return any_memory_; }

  /// Reads the device's memory, and waits for it.
  bool Read(void* to, const void* from, size_t bytes);
  /// Writes it, from pinned memory, in the order of the stream.
  bool Write(void* to, const void* from, size_t bytes);
  /// Whether the device reads this memory of the host's where it lies.
  bool Reaches(const ggml_tensor* tensor) const;
  int64_t FreeBytes() const;
  /// Whether `backend` is of this device.
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
