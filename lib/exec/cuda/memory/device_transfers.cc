#include "exec/cuda/memory/device_transfers.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/bytes_text.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "source/read_records.h"

namespace moert::cuda {
namespace {

constexpr int64_t kArenaBuffer = int64_t{256} << 20;

/// The caller itself enqueues demand loads of records in pinned memory, one behind the other, so
/// the copy engine never waits for a thread between two copies. All other transfers go through
/// `inner`.
class DeviceTransfers final : public TransferQueue {
 public:
  DeviceTransfers(std::unique_ptr<DeviceSource> source, std::unique_ptr<TransferQueue> inner,
                  const Clock* direct_clock, std::shared_ptr<LinkPacer> pacer)
      : source_(std::move(source)),
        inner_(std::move(inner)),
        clock_(direct_clock),
        pacer_(std::move(pacer)) {}

  ~DeviceTransfers() override {
    for (Direct& direct : direct_) source_->ReturnEvent(direct.event);
  }

  void Submit(const Transfer& transfer) override {
    source_->Stamp(transfer);
    const int64_t now = clock_ != nullptr ? clock_->now_ns() : 0;
    if (transfer.reason == LoadReason::kDemand && Issue(transfer, now)) return;
    if (clock_ != nullptr) waiting_.reserve(waiting_.size() + 1);
    inner_->Submit(transfer);
    if (clock_ != nullptr) waiting_.push_back({transfer, now});
  }

  void Raise(ExpertKey key, int version, LoadReason reason) override {
    Waiting* waiting = Find(key, version);
    if (waiting == nullptr || reason != LoadReason::kDemand ||
        !source_->Kept(key, waiting->transfer.source_version)) {
      inner_->Raise(key, version, reason);
      return;
    }
    const Waiting w = *waiting;
    direct_.push_back({w.transfer, w.submitted_ns, nullptr, 0});  // first, as it may throw
    if (!inner_->Cancel(key, version)) {
      direct_.pop_back();  // the transfer has begun already
      return;
    }
    Forget(key, version);
    if (!Start(&direct_.back())) {
      direct_.pop_back();
      inner_->Submit(w.transfer);
    }
  }

  bool Cancel(ExpertKey key, int version) override {
    if (!inner_->Cancel(key, version)) return false;
    Forget(key, version);
    return true;
  }

  void Poll(std::vector<TransferDone>* done) override {
    const size_t before = done->size();
    inner_->Poll(done);
    for (size_t i = before; i < done->size(); ++i) Arrived((*done)[i]);
    while (!direct_.empty() && Finish(false, done)) {
    }
  }

  bool Wait(std::vector<TransferDone>* done) override {
    const size_t before = done->size();
    Poll(done);
    if (done->size() > before) return true;
    if (!direct_.empty()) return Finish(true, done);
    if (!inner_->Wait(done)) return false;
    for (size_t i = before; i < done->size(); ++i) Arrived((*done)[i]);
    return true;
  }

 private:
  struct Direct {
    Transfer transfer;
    int64_t submitted_ns;
    cudaEvent_t event;
    int64_t due_ns;  // when its turn on a paced link is over
  };
  struct Waiting {
    Transfer transfer;
    int64_t submitted_ns;
  };

  /// False if the record is not in pinned memory or if something failed; `inner_` then reports the
  /// error.
  bool Issue(const Transfer& transfer, int64_t submitted_ns) {
    if (clock_ == nullptr) return false;
    direct_.push_back({transfer, submitted_ns, nullptr, 0});  // first, as it may throw
    if (Start(&direct_.back())) return true;
    direct_.pop_back();
    return false;
  }

  bool Start(Direct* direct) {
    const absl::StatusOr<DeviceSource::Copying> copying = source_->Begin(direct->transfer);
    if (!copying.ok() || copying->event == nullptr) return false;
    direct->event = copying->event;
    if (pacer_ == nullptr) return true;
    // The pacer limits the link to the host, not the link between GPUs.
    direct->due_ns =
        copying->from_peer ? clock_->now_ns() : pacer_->Reserve(direct->transfer.bytes);
    return true;
  }

  /// Delivers the oldest copy if it is done, or waits until it is.
  bool Finish(bool wait, std::vector<TransferDone>* done) {
    const Direct oldest = direct_.front();
    if (pacer_ != nullptr) {
      if (!wait && clock_->now_ns() < oldest.due_ns) return false;
      AwaitTurn(oldest.due_ns);
    }
    const cudaError_t error = wait ? AwaitEvent(oldest.event) : QueryEvent(oldest.event);
    if (error == cudaErrorNotReady) return false;
    done->reserve(done->size() + 1);
    if (error == cudaSuccess) source_->Arrived(oldest.transfer);
    direct_.pop_front();
    source_->ReturnEvent(oldest.event);
    const int64_t now = pacer_ != nullptr ? oldest.due_ns : clock_->now_ns();
    done->push_back({oldest.transfer.key, oldest.transfer.version,
                     ToStatus(error, "copying a record"), oldest.transfer.bytes,
                     oldest.submitted_ns, std::max(oldest.submitted_ns, last_finished_ns_), now});
    last_finished_ns_ = now;
    return true;
  }

  /// Waits as precisely as for an event of a real link: sleeps, then spins for the last moment.
  void AwaitTurn(int64_t due_ns) const {
    constexpr int64_t kAwakeNs = 200'000;
    const int64_t left_ns = due_ns - clock_->now_ns();
    if (left_ns > kAwakeNs) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns - kAwakeNs));
    }
    while (clock_->now_ns() < due_ns) {
    }
  }

  Waiting* Find(ExpertKey key, int version) {
    for (Waiting& w : waiting_) {
      if (w.transfer.key == key && w.transfer.version == version) return &w;
    }
    return nullptr;
  }
  /// Handles an arrival of inner_.
  void Arrived(const TransferDone& done) {
    const Waiting* w = Find(done.key, done.version);
    if (w != nullptr && done.status.ok()) source_->Arrived(w->transfer);
    Forget(done.key, done.version);
  }
  void Forget(ExpertKey key, int version) {
    Waiting* w = Find(key, version);
    if (w == nullptr) return;
    *w = waiting_.back();
    waiting_.pop_back();
  }

  std::unique_ptr<DeviceSource> source_;  // outlives the threads of inner_
  std::unique_ptr<TransferQueue> inner_;
  const Clock* const clock_;  // null: everything goes through inner_
  const std::shared_ptr<LinkPacer> pacer_;
  std::deque<Direct> direct_;     // in the order of the copy stream
  std::vector<Waiting> waiting_;  // transfers given to inner_
  int64_t last_finished_ns_ = 0;
};

}  // namespace

absl::Status DeviceSource::Init() {
  DeviceScope scope(device_);
  return MakeUrgentStream(&stream_);
}

DeviceSource::~DeviceSource() {
  leaving_.emplace(device_);
  LeavePeers();  // waits for the copies, whose events are destroyed below
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  if (left_ != nullptr) cudaEventDestroy(left_);
  for (Staging& staging : idle_) cudaEventDestroy(staging.done);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void DeviceSource::Stamp(const Transfer& transfer) {
  if (peers_ != nullptr) peers_->BeforeWrite(transfer.dst.data(), transfer.bytes, stream_);
  const ComputeFence::Ticket now = fence_->Now();
  const MutexLock lock(&mu_);
  tickets_[Id(transfer)] = now;
}

void DeviceSource::Arrived(const Transfer& transfer) {
  if (peers_ != nullptr) peers_->Publish(Id(transfer), transfer.dst.data(), transfer.bytes);
}

std::byte* DeviceSource::Reserve(int64_t bytes) const {
  const MutexLock lock(&mu_);
  if ((arena_.empty() || arena_used_ + bytes > arena_.back().bytes()) && !Grow(bytes)) {
    return nullptr;
  }
  std::byte* at = arena_.back().data() + arena_used_;
  arena_used_ += bytes;
  return at;
}

bool DeviceSource::Grow(int64_t bytes) const {
  const int64_t size = std::min(std::max(kArenaBuffer, bytes), pinned_limit_ - pinned_bytes_);
  if (size < bytes || pinning_refused_) return false;
  absl::StatusOr<Buffer> buffer = Buffer::Pinned(size);
  if (!buffer.ok()) {
    // The system's limit is reached: pinned records stay, others go through staging buffers.
    pinning_refused_ = true;
    notice_ = fmt::format("{}; {} are pinned, further records are read again for every transfer",
                          buffer.status().message(), BytesText(pinned_bytes_));
    return false;
  }
  pinned_bytes_ += size;
  arena_.push_back(std::move(*buffer));
  arena_used_ = 0;
  return true;
}

std::string DeviceSource::TakeNotice() const {
  const MutexLock lock(&mu_);
  std::string notice;
  notice.swap(notice_);
  return notice;
}

absl::StatusOr<DeviceSource::Staging> DeviceSource::TakeStaging(int64_t bytes) const {
  Staging staging;
  {
    const MutexLock lock(&mu_);
    if (!idle_.empty()) {
      staging = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (staging.done == nullptr) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&staging.done, cudaEventDisableTiming));
  }
  if (staging.buffer.bytes() < bytes) {
    absl::StatusOr<Buffer> buffer = Buffer::Pinned(bytes);
    if (!buffer.ok()) buffer = Buffer::Pageable(bytes);  // slower; Grow gave notice of the reason
    if (!buffer.ok()) {
      cudaEventDestroy(staging.done);
      return buffer.status();
    }
    staging.buffer = std::move(*buffer);
  }
  return staging;
}

absl::Status DeviceSource::Copy(int64_t id, const std::byte* from, int64_t bytes, std::byte* to,
                                cudaEvent_t done) const {
  ComputeFence::Ticket ticket = 0;
  {
    const MutexLock lock(&mu_);
    if (const auto it = tickets_.find(id); it != tickets_.end()) ticket = it->second;
  }
  MOERT_RETURN_IF_ERROR(fence_->Wait(ticket, stream_));
  cudaError_t error =
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_);
  if (error != cudaSuccess) return ToStatus(error, "copying a record");
  error = cudaEventRecord(done, stream_);
  // When this returns, also with an error, the copy no longer uses its source and destination.
  if (error == cudaSuccess) return ToStatus(cudaEventSynchronize(done), "copying a record");
  cudaStreamSynchronize(stream_);
  return ToStatus(error, "copying a record");
}

const std::byte* DeviceSource::KeptRecord(ExpertKey key, int source_version) const {
  const MutexLock lock(&mu_);
  return Pinned(key.layer, key.expert, source_version);
}

bool DeviceSource::Kept(ExpertKey key, int source_version) const {
  return KeptRecord(key, source_version) != nullptr;
}

absl::StatusOr<DeviceSource::Copying> DeviceSource::Begin(const Transfer& transfer) {
  const std::byte* from = nullptr;
  ComputeFence::Ticket ticket = 0;
  Copying copying;
  {
    const MutexLock lock(&mu_);
    from = Pinned(transfer.key.layer, transfer.key.expert, transfer.source_version);
    if (from == nullptr && peers_ == nullptr) return copying;
    if (const auto it = tickets_.find(Id(transfer)); it != tickets_.end()) ticket = it->second;
    if (!events_.empty()) {
      copying.event = events_.back();
      events_.pop_back();
    }
  }
  DeviceScope scope(device_);
  if (copying.event == nullptr) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&copying.event, cudaEventDisableTiming));
  }
  const int64_t bytes =
      layout(transfer.key.layer, transfer.key.expert, transfer.source_version).bytes;
  // A copy from another engine must not wait for products, because they may wait for that engine.
  if (peers_ != nullptr && fence_->Passed(ticket) &&
      peers_->Copy(Id(transfer), bytes, transfer.dst.data(), copying.event)) {
    copying.from_peer = true;
    return copying;
  }
  const auto enqueue = [&]() -> absl::Status {
    MOERT_RETURN_IF_ERROR(fence_->Wait(ticket, stream_));
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(
        transfer.dst.data(), from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_));
    const cudaError_t recorded = cudaEventRecord(copying.event, stream_);
    if (recorded != cudaSuccess) cudaStreamSynchronize(stream_);  // the block can be reused
    return ToStatus(recorded, "copying a record");
  };
  const absl::Status status = from != nullptr ? enqueue() : absl::OkStatus();
  if (from != nullptr && status.ok()) return copying;
  ReturnEvent(copying.event);
  if (!status.ok()) return status;
  return Copying{};
}

void DeviceSource::ReturnEvent(cudaEvent_t event) {
  if (peers_ != nullptr) peers_->Done(event);
  const MutexLock lock(&mu_);
  events_.push_back(event);
}

absl::Status DeviceSource::ReadRecord(int layer, int expert, int version,
                                      absl::Span<std::byte> dst) const {
  DeviceScope scope(device_);
  const int64_t id = Id(layer, expert, version);
  const int64_t bytes = layout(layer, expert, version).bytes;
  const int64_t rounded = PlaceBytes(*source_, layer, expert, version);
  const std::byte* from = nullptr;
  {
    const MutexLock lock(&mu_);
    from = Pinned(layer, expert, version);
    if (from != nullptr) reading_.push_back(id);  // keeps it in place until the copy is done
  }
  const absl::Cleanup read = [&, kept = from != nullptr] {
    const MutexLock lock(&mu_);
    if (kept) reading_.erase(std::find(reading_.begin(), reading_.end(), id));
  };
  std::byte* place = from == nullptr ? Reserve(rounded) : nullptr;
  const bool spare = from == nullptr && place == nullptr && version == moving_version_;
  if (spare) place = set_->TakePlace(rounded);
  MOERT_ASSIGN_OR_RETURN(Staging staging,
                         TakeStaging(from == nullptr && place == nullptr ? rounded : 0));
  absl::Status status;
  if (from == nullptr) {
    std::byte* into = place != nullptr ? place : staging.buffer.data();
    status = source_->ReadRecord(layer, expert, version, absl::MakeSpan(into, rounded));
    from = into;
  }
  if (status.ok()) status = Copy(id, from, bytes, dst.data(), staging.done);
  const MutexLock lock(&mu_);
  // A failed read leaves a hole in the arena. Failures are rare, and the next read takes a new
  // place.
  if (status.ok() && place != nullptr) KeepAt({layer, expert}, version, place);
  if (!status.ok() && spare && place != nullptr) set_->GiveBack(place);
  idle_.push_back(std::move(staging));
  return status;
}

std::unique_ptr<TransferQueue> MakeDeviceTransfers(std::unique_ptr<DeviceSource> source,
                                                   std::unique_ptr<TransferQueue> inner,
                                                   const Clock* direct_clock,
                                                   std::shared_ptr<LinkPacer> pacer) {
  return std::make_unique<DeviceTransfers>(std::move(source), std::move(inner), direct_clock,
                                           std::move(pacer));
}

}  // namespace moert::cuda
