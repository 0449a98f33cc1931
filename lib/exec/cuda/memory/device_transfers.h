// Transfers from the expert source through pinned host memory into device memory.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_TRANSFERS_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_TRANSFERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/peer_link.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"
#include "store/pinned_set.h"
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
  /// FailedPrecondition where the host budget does not hold all, beside those of former calls, or
  /// none was given.
  absl::Status KeepAll(int version, ThreadPool* pool);
  /// Bytes of these that the source has not pinned.
  int64_t whole_bytes() const { return whole_bytes_; }

  // Where it does not: a device reads the records that are kept, a CPU all of them, and those that
  // are kept change by what is used (PinnedSet). Records of one version.

  /// From here on. Before the first transfer.
  absl::Status MoveByUse(int version);
  bool moves() const { return set_ != nullptr; }
  /// For a product on the CPU, by one thread: where a record lies in pinned memory, or a place to
  /// read it into. EndRead has to follow where it was read, EndJob in any case. `elsewhere`: see
  /// PinnedSet.
  PinnedSet::Found Find(ExpertKey key, bool elsewhere);
  void EndRead(ExpertKey key, bool ok) { set_->EndRead(Number(key), ok); }
  void EndJob() { set_->EndJob(); }
  /// The device has read the record of this number, which counts all experts.
  void Use(int32_t number) { set_->Use(number); }
  /// In front of a step: what the device has to be told, by numbers. Then, behind all that was
  /// enqueued so far, Left, until it is true.
  std::vector<PinnedSet::Change> Turn();
  bool Left();
  int64_t swaps() const { return set_ != nullptr ? set_->swaps() : 0; }
  /// The source below.
  const ExpertSource& source() const { return *source_; }
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
  /// One for whoever gave a host budget, unless there is one already.
  void NoticeBudget(std::string notice) const;
  /// Bytes of pinned memory for records.
  int64_t pinned_bytes() const {
    const MutexLock lock(&mu_);
    return pinned_bytes_;
  }

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
  int32_t Number(ExpertKey key) const { return first_[key.layer] + key.expert; }
  ExpertKey KeyOf(int32_t number) const;
  bool Reads(int32_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Its place in the arena has been filled.
  void KeepAt(ExpertKey key, int version, std::byte* place) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Reads a record into the arena.
  absl::Status Keep(ExpertKey key, int version);
  /// A place for a record in the pinned arena, or null when the host budget is spent.
  std::byte* Reserve(int64_t bytes) const;
  /// A spare place for the set, as large as any record. False: the host budget is spent.
  bool AddPlace();
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

  int64_t whole_bytes_ = 0;
  std::unique_ptr<PinnedSet> set_;  // null: what is kept stays
  int moving_version_ = -1;
  int64_t largest_ = 0;         // record, with its alignment
  std::vector<int32_t> first_;  // of each layer, of all experts
  cudaEvent_t left_ = nullptr;  // behind copies from places that were let go
  bool unmarked_ = false;       // it could not be recorded
  mutable std::vector<int64_t> reading_ ABSL_GUARDED_BY(mu_);  // kept records that are being copied
};

/// For a device that serves misses of `version`: keeps all of its records, or, where the host
/// budget does not hold them and a CPU shares the misses, those that are used. `low`: a version
/// that answers some of the misses, of which all records are kept, or -1. FailedPrecondition: why
/// not.
absl::Status KeepRecords(DeviceSource* records, int version, int low, bool shared,
                         ThreadPool* pool);

/// `inner` reads through `source`, which is kept alive here. Demand loads of kept records bypass it
/// when `direct_clock`, the engine's, is not null: legal where transfers take what time they take.
/// With a pacer, which `inner` shares, a copy is delivered when its turn on the link is over.
std::unique_ptr<TransferQueue> MakeDeviceTransfers(std::unique_ptr<DeviceSource> source,
                                                   std::unique_ptr<TransferQueue> inner,
                                                   const Clock* direct_clock,
                                                   std::shared_ptr<LinkPacer> pacer);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_TRANSFERS_H_
