// Transfers from the expert source through pinned host memory into device memory.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_TRANSFERS_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_TRANSFERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/peer_link.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"
#include "transfer/link_pacer.h"
#include "transfer/transfer_queue.h"

namespace moert::cuda {

/// A source whose ReadRecord fills device memory: the record comes from pinned host memory, the
/// source's own (PinnedRecord) or ours, where it stays after the first read while the host budget
/// lasts, or through a staging buffer, and is copied by one asynchronous copy on the copy stream.
/// Blocks the calling thread until the copy is done. Thread-safe.
class DeviceSource final : public ExpertSource {
 public:
  /// `host_budget`: as given (EngineOptions), `pinned_limit`: what holds in its place. `peers`: of
  /// engines that bring records from each other; null: alone. All borrowed.
  DeviceSource(const ExpertSource* source, int device, int64_t host_budget, int64_t pinned_limit,
               ComputeFence* fence, PeerLink* peers)
      : source_(source),
        device_(device),
        host_budget_(host_budget),
        pinned_limit_(pinned_limit),
        fence_(fence),
        peers_(peers) {}
  ~DeviceSource() override;
  absl::Status Init();

  /// The copy of this record waits for the fence as it is now: its block was just taken. Other
  /// engines do not find there what it held.
  void Stamp(const Transfer& transfer);
  /// A transfer has arrived; other engines may copy it.
  void Arrived(const Transfer& transfer);
  /// Neither copies from other engines nor lets them copy, from here on.
  void LeavePeers() const {
    if (peers_ != nullptr) peers_->Leave();
  }

  /// Whether the record lies in pinned memory, so that Begin can copy it.
  bool Kept(ExpertKey key, int source_version) const;
  /// Where that is, for as long as this lives; null: not kept.
  const std::byte* KeptRecord(ExpertKey key, int source_version) const;
  /// OK when every record of a version is kept. Reads RecordsToKeep with all threads of `pool`.
  /// FailedPrecondition where the host budget does not hold all, or none was given.
  absl::Status KeepAll(int version, ThreadPool* pool);
  /// A copy that Begin began.
  struct Copying {
    cudaEvent_t event = nullptr;  // behind it, to be given back by ReturnEvent
    bool from_peer = false;
  };
  /// Enqueues the copy of a record that another engine holds, or that is kept; no event where
  /// neither is so. Does not wait.
  absl::StatusOr<Copying> Begin(const Transfer& transfer);
  void ReturnEvent(cudaEvent_t event);

  /// A notice for the person who runs the host, given once; empty: none.
  std::string TakeNotice() const;

  const MoeModelSpec& model() const override { return source_->model(); }
  const std::string& name() const override { return source_->name(); }
  int num_versions() const override { return source_->num_versions(); }
  absl::string_view version_name(int v) const override { return source_->version_name(v); }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    return source_->layout(layer, expert, version);
  }
  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override;
  const std::function<absl::Status(const OpaqueProduct&)>* product() const override {
    return source_->product();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    return source_->ReadConstants(layer);
  }

 private:
  struct Staging {
    Buffer buffer;
    cudaEvent_t done = nullptr;
  };

  int64_t Id(int layer, int expert, int version) const {
    return (int64_t{version} << 40) | (int64_t{layer} << 20) | expert;
  }
  int64_t Id(const Transfer& transfer) const {
    return Id(transfer.key.layer, transfer.key.expert, transfer.source_version);
  }
  /// Where a record lies in pinned memory, or null.
  const std::byte* Pinned(int layer, int expert, int version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::byte* own = source_->PinnedRecord(layer, expert, version);
    if (own != nullptr) return own;
    const auto it = kept_.find(Id(layer, expert, version));
    return it != kept_.end() ? it->second : nullptr;
  }
  /// Reads a record into the arena.
  absl::Status Keep(ExpertKey key, int version);
  /// A place for a record in the pinned arena, or null when the host budget is spent.
  std::byte* Reserve(int64_t bytes) const;
  /// Makes the arena's next buffer.
  bool Grow(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Staging> TakeStaging(int64_t bytes) const;
  absl::Status Copy(int64_t id, const std::byte* from, int64_t bytes, std::byte* to,
                    cudaEvent_t done) const;

  std::optional<DeviceScope> leaving_;  // first: memory and events below go within it
  const ExpertSource* const source_;
  const int device_;
  const int64_t host_budget_;  // -1: none given
  const int64_t pinned_limit_;
  ComputeFence* const fence_;
  PeerLink* const peers_;
  cudaStream_t stream_ = nullptr;

  mutable Mutex mu_;
  mutable std::vector<Buffer> arena_ ABSL_GUARDED_BY(mu_);
  mutable int64_t arena_used_ ABSL_GUARDED_BY(mu_) = 0;  // of the last buffer
  mutable int64_t pinned_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  mutable bool pinning_refused_ ABSL_GUARDED_BY(mu_) = false;
  mutable std::string notice_ ABSL_GUARDED_BY(mu_);
  mutable std::unordered_map<int64_t, const std::byte*> kept_ ABSL_GUARDED_BY(mu_);
  mutable std::unordered_map<int64_t, ComputeFence::Ticket> tickets_ ABSL_GUARDED_BY(mu_);
  mutable std::vector<Staging> idle_ ABSL_GUARDED_BY(mu_);
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);
};

/// `inner` reads through `source`, which is kept alive here. Demand loads of kept records bypass it
/// when `direct_clock`, the engine's, is not null: legal where transfers take what time they take.
/// With a pacer, which `inner` shares, a copy is delivered when its turn on the link is over.
std::unique_ptr<TransferQueue> MakeDeviceTransfers(std::unique_ptr<DeviceSource> source,
                                                   std::unique_ptr<TransferQueue> inner,
                                                   const Clock* direct_clock,
                                                   std::shared_ptr<LinkPacer> pacer);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_TRANSFERS_H_
