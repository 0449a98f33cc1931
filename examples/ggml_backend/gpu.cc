#include "gpu.h"

#include <atomic>
#include <cstring>

namespace moert_ggml {
namespace {

// CUDA's own buffer functions, which ours call.
ggml_backend_buffer_i cuda_buffers = {};
std::atomic<bool> given_up{false};
// Leaked: buffers may be freed while the process exits.
Gpu* the_gpu = nullptr;

void AwaitDevice() { the_gpu->stream()->SynchronizeDevice(); }

void SetTensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data, size_t offset,
               size_t size) {
  AwaitDevice();
  cuda_buffers.set_tensor(buffer, tensor, data, offset, size);
}

void GetTensor(ggml_backend_buffer_t buffer, const ggml_tensor* tensor, void* data, size_t offset,
               size_t size) {
  AwaitDevice();
  cuda_buffers.get_tensor(buffer, tensor, data, offset, size);
}

bool CopyTensor(ggml_backend_buffer_t buffer, const ggml_tensor* from, ggml_tensor* to) {
  AwaitDevice();
  return cuda_buffers.cpy_tensor(buffer, from, to);
}

ggml_backend_buffer_t Allocate(ggml_backend_buffer_type_t type, size_t size) {
  ggml_backend_buffer_t buffer = the_gpu->cuda_type()->iface.alloc_buffer(type, size);
  if (buffer == nullptr) return nullptr;
  cuda_buffers = buffer->iface;
  buffer->iface.set_tensor = SetTensor;
  buffer->iface.get_tensor = GetTensor;
  buffer->iface.set_tensor_2d = nullptr;
  buffer->iface.get_tensor_2d = nullptr;
  buffer->iface.cpy_tensor = CopyTensor;
  return buffer;
}

void* AnyBase(ggml_backend_buffer_t /*buffer*/) { return reinterpret_cast<void*>(4096); }
void FreeNothing(ggml_backend_buffer_t /*buffer*/) {}

}  // namespace

Gpu* Gpu::Get() {
  Gpu* const device = Device();
  return given_up.load() ? nullptr : device;
}

Gpu* Gpu::Device() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto* made = new Gpu;
    if (made->Init()) {
      the_gpu = made;
    } else {
      delete made;
    }
  });
  return the_gpu;
}

void Gpu::GiveUp() { given_up.store(true); }

bool Gpu::Init() {
  ggml_backend_reg_t registry = ggml_backend_reg_by_name("CUDA");
  if (registry == nullptr || ggml_backend_reg_dev_count(registry) == 0) return false;
  device_ = ggml_backend_reg_dev_get(registry, 0);
  cuda_type_ = ggml_backend_dev_buffer_type(device_);
  host_type_ = ggml_backend_dev_host_buffer_type(device_);
  if (host_type_ == nullptr) host_type_ = ggml_backend_cpu_buffer_type();
  stream_ = CudaStream::Create(device_, ordinal());
  if (cuda_type_ == nullptr || stream_ == nullptr) return false;
  compute_type_ = *cuda_type_;
  compute_type_.iface.alloc_buffer = Allocate;
  ggml_backend_buffer_i iface = {};
  iface.get_base = AnyBase;
  iface.free_buffer = FreeNothing;
  any_memory_ = ggml_backend_buffer_init(cuda_type_, iface, nullptr, SIZE_MAX / 2);
  ggml_backend_buffer_set_usage(any_memory_, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  return true;
}

bool Gpu::Read(void* to, const void* from, size_t bytes) {
  if (!in_host_memory()) return stream_->Read(to, from, bytes);
  std::memcpy(to, from, bytes);
  return true;
}

bool Gpu::Write(void* to, const void* from, size_t bytes) {
  if (!in_host_memory()) return stream_->Write(to, from, bytes);
  std::memcpy(to, from, bytes);
  return true;
}

bool Gpu::Reaches(const ggml_tensor* tensor) const {
  // ggml falls back to plain memory when no more memory can be pinned.
  const ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(tensor->buffer);
  return in_host_memory() || type != ggml_backend_cpu_buffer_type();
}

int64_t Gpu::FreeBytes() const {
  size_t free = 0, total = 0;
  ggml_backend_dev_memory(device_, &free, &total);
  return static_cast<int64_t>(free);
}

bool Gpu::Runs(ggml_backend_t backend) const {
  return backend != nullptr && ggml_backend_get_device(backend) == device_;
}

}  // namespace moert_ggml
