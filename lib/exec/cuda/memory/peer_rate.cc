#include "exec/cuda/memory/peer_rate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_pool.h"
#include "exec/cuda/memory/peer_link.h"
#include "exec/step_fence.h"
#include "store/block_pool.h"

namespace moert::cuda {
namespace {

constexpr int64_t kBytes = int64_t{8} << 20;

/// A block of a pool, mapped for the devices that may read it.
class BlockOf {
 public:
  explicit BlockOf(int device) : peers_(nullptr, device), budget_(kBytes) {}

  absl::Status Init(int device) {
    const DeviceScope scope(device);
    MOERT_RETURN_IF_ERROR(scope.status());
    MOERT_RETURN_IF_ERROR(fence_.Init());
    MOERT_ASSIGN_OR_RETURN(
        pool_, MakeDevicePool(device, BlockSizes(kBytes, 1), 1, &budget_, &fence_, &peers_));
    if (pool_->Take() == 0) return absl::OkStatus();
    return absl::ResourceExhaustedError("the device is out of memory");
  }
  const std::byte* data() const { return pool_->Address(0); }
  absl::StatusOr<std::vector<int>> Readers() const { return peers_.Readers(); }

 private:
  PeerLink peers_;
  BudgetTracker budget_;
  ComputeFence fence_;
  std::unique_ptr<BlockPool> pool_;
};

/// The shortest time of a few copies, in seconds. copy(): enqueues one.
template <typename Copy>
absl::StatusOr<double> Seconds(cudaStream_t stream, const Copy& copy) {
  double best = std::numeric_limits<double>::max();
  for (int trial = 0; trial < 4; ++trial) {
    const auto begin = std::chrono::steady_clock::now();
    MOERT_CUDA_RETURN_IF_ERROR(copy());
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (trial > 0) best = std::min(best, took.count());
  }
  return best;
}

absl::StatusOr<bool> Measure(int from, int to) {
  BlockOf block(from);
  MOERT_ASSIGN_OR_RETURN(const std::vector<int> readers, block.Readers());
  if (std::find(readers.begin(), readers.end(), to) == readers.end()) return false;
  MOERT_RETURN_IF_ERROR(block.Init(from));
  const DeviceScope scope(to);
  MOERT_RETURN_IF_ERROR(scope.status());
  MOERT_ASSIGN_OR_RETURN(const Buffer into, Buffer::Device(kBytes));
  MOERT_ASSIGN_OR_RETURN(const Buffer pinned, Buffer::Pinned(kBytes));
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<SideStream> side, MakeSideStream(to));
  const auto stream = static_cast<cudaStream_t>(side->get());
  MOERT_ASSIGN_OR_RETURN(const double peer, Seconds(stream, [&] {
                           return cudaMemcpyPeerAsync(into.data(), to, block.data(), from, kBytes,
                                                      stream);
                         }));
  MOERT_ASSIGN_OR_RETURN(const double host, Seconds(stream, [&] {
                           return cudaMemcpyAsync(into.data(), pinned.data(), kBytes,
                                                  cudaMemcpyHostToDevice, stream);
                         }));
  return peer < host;
}

}  // namespace

bool PeerCopiesPay(int from, int to) {
  const absl::StatusOr<bool> pays = Measure(from, to);
  if (!pays.ok()) cudaGetLastError();
  return pays.ok() && *pays;
}

}  // namespace moert::cuda
