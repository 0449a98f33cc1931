// An engine's side of a peer tier on CUDA: its copies out of other engines' blocks, and the waits
// for other engines' copies before its own blocks are overwritten.
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

/// Thread-safe after Join.
class PeerLink {
 public:
  PeerLink(std::shared_ptr<PeerTier> tier, int device) : tier_(std::move(tier)), device_(device) {}
  ~PeerLink();

  /// The devices that may read this device's memory, itself first. Only itself if NCCL_P2P_DISABLE,
  /// a variable of NCCL, forbids peer access.
  absl::StatusOr<std::vector<int>> Readers() const;

  /// Joins the tier. When the tier has engines on two devices, copies between them are timed. If
  /// they are slower than copies from pinned memory, or one device cannot reach the other, records
  /// are not copied between these devices.
  absl::Status Join(const void* source);
  /// Leaves the tier: waits for this engine's copies, and other engines no longer find its blocks.
  /// Also called when the device itself begins to decide what is in the blocks.
  void Leave();

  void Publish(int64_t record, const std::byte* at, int64_t bytes);
  /// Called before work on `stream` writes to this memory: orders the stream behind the other
  /// engines' copies from it.
  void BeforeWrite(const std::byte* at, int64_t bytes, cudaStream_t stream);
  /// Waits until no engine reads this memory any more.
  void BeforeUnmap(const std::byte* at, int64_t bytes);
  /// Begins a copy of a record that another engine holds, and records `done` behind it; when it is
  /// done, Done has to be called. False: no engine holds the record, or the copy failed.
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
