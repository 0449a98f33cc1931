#include "base/pinned_memory.h"

#include <map>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"
#include "moert/backend.h"

namespace moert {
namespace {

class PinnedAllocator final : public HostAllocator {
 public:
  void* Allocate(int64_t bytes, int64_t /*alignment*/) override {  // pages are larger
    absl::StatusOr<cuda::Buffer> buffer = cuda::Buffer::Pinned(bytes);
    if (!buffer.ok()) return nullptr;
    void* const memory = buffer->data();
    const MutexLock lock(&mu_);
    buffers_.emplace(memory, *std::move(buffer));
    return memory;
  }
  void Free(void* memory, int64_t /*bytes*/) override {
    const MutexLock lock(&mu_);
    buffers_.erase(memory);
  }

 private:
  Mutex mu_;
  std::map<void*, cuda::Buffer> buffers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<HostAllocator>> MakePinnedAllocator() {
  MOERT_RETURN_IF_ERROR(CudaStatus());
  return std::make_shared<PinnedAllocator>();
}

absl::StatusOr<std::shared_ptr<void>> LockPages(std::byte* memory, int64_t bytes) {
  MOERT_RETURN_IF_ERROR(CudaStatus());
  const cuda::RelaxedCapture relaxed;
  const cudaError_t error =
      cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterPortable);
  if (error != cudaSuccess) cudaGetLastError();  // the host's next check must not find it
  MOERT_CUDA_RETURN_IF_ERROR(error);
  return std::shared_ptr<void>(memory, [](void* locked) {
    const cuda::RelaxedCapture relaxed;
    cudaHostUnregister(locked);
  });
}

}  // namespace moert
