#include "backend/cuda/device_transfers.h"

#include <algorithm>

#include "base/status_macros.h"

namespace moert::cuda {
namespace {

constexpr int64_t kArenaBuffer = int64_t{256} << 20;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class DeviceTransfers final : public TransferQueue {
 public:
  DeviceTransfers(std::unique_ptr<DeviceSource> source, std::unique_ptr<TransferQueue> inner)
      : source_(std::move(source)), inner_(std::move(inner)) {}

  void Submit(const Transfer& transfer) override {
    source_->Stamp(transfer.key, transfer.source_version);
    inner_->Submit(transfer);
  }
  void Raise(ExpertKey key, int version, LoadReason reason) override {
    inner_->Raise(key, version, reason);
  }
  bool Cancel(ExpertKey key, int version) override { return inner_->Cancel(key, version); }
  void Poll(std::vector<TransferDone>* done) override { inner_->Poll(done); }
  bool Wait(std::vector<TransferDone>* done) override { return inner_->Wait(done); }

 private:
  std::unique_ptr<DeviceSource> source_;  // outlives the threads of inner_
  std::unique_ptr<TransferQueue> inner_;
};

}  // namespace

absl::Status DeviceSource::Init() {
  DeviceScope scope(device_);
  int lowest = 0, highest = 0;
  MOERT_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
  return absl::OkStatus();
}

DeviceSource::~DeviceSource() {
  DeviceScope scope(device_);
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  for (Staging& staging : idle_) cudaEventDestroy(staging.done);
}

void DeviceSource::Stamp(ExpertKey key, int source_version) {
  const ComputeFence::Ticket now = fence_->Now();
  std::lock_guard<std::mutex> lock(mu_);
  tickets_[Id(key.layer, key.expert, source_version)] = now;
}

std::byte* DeviceSource::Reserve(int64_t bytes) const {
  std::lock_guard<std::mutex> lock(mu_);
  if (arena_.empty() || arena_used_ + bytes > arena_.back().bytes()) {
    int64_t size = std::max(kArenaBuffer, bytes);
    if (host_budget_ >= 0) size = std::min(size, host_budget_ - pinned_bytes_);
    if (size < bytes || pinning_refused_) return nullptr;
    absl::StatusOr<Buffer> buffer = Buffer::Pinned(size);
    if (!buffer.ok()) {
      pinning_refused_ = true;  // the system's limit: what is pinned stays, the rest is staged
      return nullptr;
    }
    pinned_bytes_ += size;
    arena_.push_back(std::move(*buffer));
    arena_used_ = 0;
  }
  std::byte* at = arena_.back().data() + arena_used_;
  arena_used_ += bytes;
  return at;
}

absl::StatusOr<DeviceSource::Staging> DeviceSource::TakeStaging(int64_t bytes) const {
  Staging staging;
  {
    std::lock_guard<std::mutex> lock(mu_);
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
    std::lock_guard<std::mutex> lock(mu_);
    if (const auto it = tickets_.find(id); it != tickets_.end()) ticket = it->second;
  }
  MOERT_RETURN_IF_ERROR(fence_->Wait(ticket, stream_));
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(done, stream_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(done));
  return absl::OkStatus();
}

absl::Status DeviceSource::ReadRecord(int layer, int expert, int version,
                                      absl::Span<std::byte> dst) const {
  DeviceScope scope(device_);
  const int64_t id = Id(layer, expert, version);
  const int64_t bytes = layout(layer, expert, version).bytes;
  const int64_t rounded = RoundUp(bytes, kRecordAlignment);
  const std::byte* from = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (const auto it = kept_.find(id); it != kept_.end()) from = it->second;
  }
  std::byte* place = from == nullptr ? Reserve(rounded) : nullptr;
  MOERT_ASSIGN_OR_RETURN(Staging staging,
                         TakeStaging(from == nullptr && place == nullptr ? rounded : 0));
  absl::Status status;
  if (from == nullptr) {
    std::byte* into = place != nullptr ? place : staging.buffer.data();
    status = source_->ReadRecord(layer, expert, version,
                                 absl::MakeSpan(into, static_cast<size_t>(rounded)));
    from = into;
  }
  if (status.ok()) status = Copy(id, from, bytes, dst.data(), staging.done);
  std::lock_guard<std::mutex> lock(mu_);
  // A failed read leaves a hole in the arena: failures are rare and the next read takes a new
  // place.
  if (status.ok() && place != nullptr) kept_[id] = place;
  idle_.push_back(std::move(staging));
  return status;
}

std::unique_ptr<TransferQueue> MakeDeviceTransfers(std::unique_ptr<DeviceSource> source,
                                                   std::unique_ptr<TransferQueue> inner) {
  return std::make_unique<DeviceTransfers>(std::move(source), std::move(inner));
}

}  // namespace moert::cuda
