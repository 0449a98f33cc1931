#include <chrono>
#include <cstring>

#include "cli/probe/cuda/streams.h"
#include "cli/probe/device.h"
#include "moert/backend.h"
#include "util/cuda_api.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::Buffer;

constexpr int64_t kBytes = int64_t{64} << 20;
constexpr int kQueued = 4;

/// Bytes a second of copies, several in the queue.
absl::StatusOr<double> CopyRate(std::byte* to, const std::byte* from, cudaMemcpyKind kind,
                                double seconds) {
  MOERT_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  const auto queue = [&]() -> absl::Status {
    for (int q = 0; q < kQueued; ++q) {
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, kBytes, kind, stream.get()));
    }
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream.get()));
    return absl::OkStatus();
  };
  MOERT_RETURN_IF_ERROR(queue());  // wakes a sleeping link
  const auto begin = Clock::now();
  std::chrono::duration<double> took{};
  int64_t copies = 0;
  do {
    MOERT_RETURN_IF_ERROR(queue());
    copies += kQueued;
    took = Clock::now() - begin;
  } while (took.count() < seconds);
  return static_cast<double>(copies * kBytes) / took.count();
}

}  // namespace

absl::StatusOr<DeviceRates> ProbeDeviceRates(double seconds) {
  MOERT_RETURN_IF_ERROR(CudaStatus());
  DeviceRates rates;
  int device = 0;
  cudaDeviceProp properties;
  RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, device));
  rates.name = properties.name;
  size_t free = 0, total = 0;
  RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
  rates.free = static_cast<int64_t>(free);
  rates.total = static_cast<int64_t>(total);
  MOERT_ASSIGN_OR_RETURN(const Buffer a, Buffer::Device(kBytes));
  MOERT_ASSIGN_OR_RETURN(const Buffer b, Buffer::Device(kBytes));
  MOERT_ASSIGN_OR_RETURN(const Buffer pinned, Buffer::Pinned(kBytes));
  std::memset(pinned.data(), 1, kBytes);
  MOERT_ASSIGN_OR_RETURN(rates.link_bytes_per_s,
                         CopyRate(a.data(), pinned.data(), cudaMemcpyHostToDevice, seconds));
  MOERT_ASSIGN_OR_RETURN(const double copied,
                         CopyRate(b.data(), a.data(), cudaMemcpyDeviceToDevice, seconds));
  rates.memory_bytes_per_s = 2 * copied;
  return rates;
}

}  // namespace moert::cli
