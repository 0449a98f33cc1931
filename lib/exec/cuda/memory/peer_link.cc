#include "exec/cuda/memory/peer_link.h"

#include <cstdlib>
#include <string_view>

#include "base/status_macros.h"
#include "exec/cuda/memory/peer_rate.h"

namespace moert::cuda {
namespace {

cudaEvent_t Event(PeerTier::Copy copy) { return static_cast<cudaEvent_t>(copy); }

}  // namespace

PeerLink::~PeerLink() {
  Leave();
  DeviceScope scope(device_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<std::vector<int>> PeerLink::Readers() const {
  std::vector<int> readers = {device_};
  const char* forbidden = std::getenv("NCCL_P2P_DISABLE");
  if (forbidden != nullptr && std::string_view(forbidden) == "1") return readers;
  int devices = 0;
  MOERT_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&devices));
  for (int device = 0; device < devices; ++device) {
    int can = 0;
    if (device == device_) continue;
    MOERT_CUDA_RETURN_IF_ERROR(cudaDeviceCanAccessPeer(&can, device, device_));
    if (can != 0) readers.push_back(device);
  }
  return readers;
}

absl::Status PeerLink::Join(const void* source) {
  DeviceScope scope(device_);
  MOERT_RETURN_IF_ERROR(scope.status());
  MOERT_RETURN_IF_ERROR(MakeUrgentStream(&stream_));
  MOERT_ASSIGN_OR_RETURN(holder_, tier_->Join(source, device_));
  for (const int other : tier_->Unjudged(device_)) {
    tier_->Judge(device_, other, PeerCopiesPay(device_, other));
    tier_->Judge(other, device_, PeerCopiesPay(other, device_));
  }
  here_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

void PeerLink::Leave() {
  if (!here_.exchange(false)) return;
  DeviceScope scope(device_);
  cudaStreamSynchronize(stream_);
  tier_->Leave(holder_, [](PeerTier::Copy copy) { AwaitEvent(Event(copy)); });
}

void PeerLink::Publish(int64_t record, const std::byte* at, int64_t bytes) {
  if (here()) tier_->Publish(holder_, record, at, bytes);
}

void PeerLink::BeforeWrite(const std::byte* at, int64_t bytes, cudaStream_t stream) {
  if (!here()) return;
  DeviceScope scope(device_);
  tier_->Withdraw(holder_, at, bytes, [&](PeerTier::Copy copy) {
    // The event belongs to another device. Both `stream` and stream_ may write to the block.
    const bool ordered = cudaStreamWaitEvent(stream, Event(copy), 0) == cudaSuccess &&
                         cudaStreamWaitEvent(stream_, Event(copy), 0) == cudaSuccess;
    if (!ordered) AwaitEvent(Event(copy));
  });
}

void PeerLink::BeforeUnmap(const std::byte* at, int64_t bytes) {
  if (!here()) return;
  tier_->Withdraw(holder_, at, bytes, [](PeerTier::Copy copy) { AwaitEvent(Event(copy)); });
}

bool PeerLink::Copy(int64_t record, int64_t bytes, std::byte* to, cudaEvent_t done) {
  if (!here()) return false;
  DeviceScope scope(device_);
  const auto begin = [&](int device, const std::byte* at) -> PeerTier::Copy {
    cudaError_t error =
        cudaMemcpyPeerAsync(to, device_, at, device, static_cast<size_t>(bytes), stream_);
    if (error == cudaSuccess) error = cudaEventRecord(done, stream_);
    if (error == cudaSuccess) return done;
    cudaStreamSynchronize(stream_);  // another copy will write the block
    cudaGetLastError();
    return nullptr;
  };
  return tier_->Read(holder_, record, begin) != nullptr;
}

void PeerLink::Done(cudaEvent_t done) {
  if (here()) tier_->Done(holder_, done);
}

}  // namespace moert::cuda
