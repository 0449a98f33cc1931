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

/// A source whose ReadRecord fills device memory. The record comes from the source's own pinned
/// memory (PinnedRecord), from this object's pinned arena, where records stay after the first read
/// while the host budget lasts, or through a staging buffer. One asynchronous copy on the copy
/// stream brings it; the calling thread blocks until the copy is done. Thread-safe.
class DeviceSource final : public ExpertSource {
 public:
  /// `host_budget`: as given (EngineOptions). `pinned_limit`: the limit that applies (PinnedLimit).
  /// `peers`: link to engines that copy records from each other; null: none. All borrowed.
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

  /// Called when the block of a transfer was just taken: its copy will wait for the fence as it is
  /// now, and other engines no longer find the block's former record there.
  void Stamp(const Transfer& transfer);
  /// Called when a transfer has arrived: from now on other engines may copy the record.
  void Arrived(const Transfer& transfer);
  /// From here on neither copies from other engines nor lets them copy.
  void LeavePeers() const {
    if (peers_ != nullptr) peers_->Leave();
  }

  /// Whether the record lies in pinned memory, so that Begin can copy it.
  bool Kept(ExpertKey key, int source_version) const;
  /// The record's address in pinned memory, valid as long as this lives; null: not kept.
  const std::byte* KeptRecord(ExpertKey key, int source_version) const;
  /// Keeps every record of a version: reads RecordsToKeep with all threads of `pool`.
  /// FailedPrecondition if the host budget does not hold all of them in addition to the versions of
  /// former calls, or if no budget was given.
  absl::Status KeepAll(int version, ThreadPool* pool);
  /// Bytes of the versions kept by KeepAll that the source has not pinned itself.
  int64_t whole_bytes() const { return whole_bytes_; }

  // If the host budget does not hold all records of the version: the device reads the records that
  // are kept, the CPU reads any, and the set of kept records follows their use (PinnedSet).

  /// Begins this, before the first transfer.
  absl::Status MoveByUse(int version);
  bool moves() const { return set_ != nullptr; }
  /// For products on the CPU, called by one thread: the address of a record in pinned memory, or a
  /// place to read it into. If it was read, EndRead has to follow; EndJob has to follow in any
  /// case. `elsewhere`: see PinnedSet.
  PinnedSet::Found Find(ExpertKey key, bool elsewhere);
  void EndRead(ExpertKey key, bool ok) { set_->EndRead(Number(key), ok); }
  void EndJob() { set_->EndJob(); }
  /// Notes that the device has read a record. `number` counts the experts of all layers.
  void Use(int32_t number) { set_->Use(number); }
  /// Before a step: the changes that the device has to be told, by the same numbers. Once
  /// everything enqueued so far is done, Left has to be called until it returns true.
  std::vector<PinnedSet::Change> Turn();
  bool Left();
  int64_t swaps() const { return set_ != nullptr ? set_->swaps() : 0; }
  /// The underlying source.
  const ExpertSource& source() const { return *source_; }
  /// A copy started by Begin.
  struct Copying {
    cudaEvent_t event = nullptr;  // recorded behind the copy; give it back by ReturnEvent
    bool from_peer = false;
  };
  /// Enqueues the copy of a record that another engine holds or that is kept in pinned memory. The
  /// event is null if neither is the case. Does not wait.
  absl::StatusOr<Copying> Begin(const Transfer& transfer);
  void ReturnEvent(cudaEvent_t event);

  /// A notice for the person who runs the host, given once; empty: none.
  std::string TakeNotice() const;
  /// Sets the notice if a host budget was given and no notice is set yet.
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
  /// The address of a record in pinned memory, or null.
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
  /// Notes that a record has been read into `place` of the arena.
  void KeepAt(ExpertKey key, int version, std::byte* place) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Reads a record into the arena.
  absl::Status Keep(ExpertKey key, int version);
  /// A place for a record in the pinned arena, or null when the host budget is spent.
  std::byte* Reserve(int64_t bytes) const;
  /// Adds a spare place to the set, as large as the largest record. False: the host budget is
  /// spent.
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
  mutable int64_t arena_used_ ABSL_GUARDED_BY(mu_) = 0;  // bytes of the last buffer
  mutable int64_t pinned_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  mutable bool pinning_refused_ ABSL_GUARDED_BY(mu_) = false;
  mutable std::string notice_ ABSL_GUARDED_BY(mu_);
  mutable std::unordered_map<int64_t, const std::byte*> kept_ ABSL_GUARDED_BY(mu_);
  mutable std::unordered_map<int64_t, ComputeFence::Ticket> tickets_ ABSL_GUARDED_BY(mu_);
  mutable std::vector<Staging> idle_ ABSL_GUARDED_BY(mu_);
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);

  int64_t whole_bytes_ = 0;
  std::unique_ptr<PinnedSet> set_;  // null: kept records stay
  int moving_version_ = -1;
  int64_t largest_ = 0;         // bytes of the largest record, with its alignment
  std::vector<int32_t> first_;  // number of each layer's first expert
  cudaEvent_t left_ = nullptr;  // behind copies from places that were let go
  bool unmarked_ = false;       // left_ could not be recorded
  mutable std::vector<int64_t> reading_ ABSL_GUARDED_BY(mu_);  // kept records that are being copied
};

/// For a device that serves misses of `version`: keeps all its records in pinned memory. If the
/// host budget does not hold them and a CPU shares the misses (`shared`), keeps those that are
/// used. `low`: a version that answers some of the misses and is kept as a whole, or -1.
/// FailedPrecondition with the reason if this is not possible.
absl::Status KeepRecords(DeviceSource* records, int version, int low, bool shared,
                         ThreadPool* pool);

/// `inner` reads through `source`, which the result owns. Demand loads of kept records bypass
/// `inner` if `direct_clock`, the engine's clock, is not null; it must be null where transfers take
/// simulated time. With a pacer, which `inner` shares, a copy is delivered when its turn on the
/// link is over.
std::unique_ptr<TransferQueue> MakeDeviceTransfers(std::unique_ptr<DeviceSource> source,
                                                   std::unique_ptr<TransferQueue> inner,
                                                   const Clock* direct_clock,
                                                   std::shared_ptr<LinkPacer> pacer);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_TRANSFERS_H_
