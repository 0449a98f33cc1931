// An engine's side of a peer tier on CUDA: its copies out of other engines' blocks, and what its
// own blocks have to wait for.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_PEER_LINK_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_PEER_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "exec/cuda/cuda_api.h"
#include "transfer/peer_tier.h"

namespace moert::cuda {

/// Thread-safe behind Join.
class PeerLink {
 public:
  PeerLink(std::shared_ptr<PeerTier> tier, int device) : tier_(std::move(tier)), device_(device) {}
  ~PeerLink();

  /// Devices that may read this one's memory, itself first; alone where NCCL_P2P_DISABLE, which
  /// NCCL goes by as well, forbids it.
  absl::StatusOr<std::vector<int>> Readers() const;

  /// Copies between two devices are timed when the tier has engines on both: where they are slower
  /// than those from pinned memory, or one device cannot reach the other, it is left alone.
  absl::Status Join(const void* source);
  /// Ends: this engine's copies are waited for, and nobody finds its blocks. Also for a device that
  /// decides by itself what is in them.
  void Leave();

  void Publish(int64_t record, const std::byte* at, int64_t bytes);
  /// Work that `stream` gets from here on may write there.
  void BeforeWrite(const std::byte* at, int64_t bytes, cudaStream_t stream);
  /// Waits until nobody reads there any more.
  void BeforeUnmap(const std::byte* at, int64_t bytes);
  /// Begins a copy of a record that another engine holds, and records `done` behind it. False: none
  /// holds it, or it failed. Then Done.
  bool Copy(int64_t record, int64_t bytes, std::byte* to, cudaEvent_t done);
  void Done(cudaEvent_t done);

 private:
  bool here() const { return here_.load(std::memory_order_acquire); }

  const std::shared_ptr<PeerTier> tier_;
  const int device_;
  PeerTier::Holder holder_ = 0;
  std::atomic<bool> here_{false};
  cudaStream_t stream_ = nullptr;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_PEER_LINK_H_
