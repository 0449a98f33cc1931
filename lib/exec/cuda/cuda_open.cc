// Open calls: see DeviceExecutor in backend/backend.h.
#include <algorithm>
#include <chrono>

#include "base/checked_math.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_executor_impl.h"

namespace moert::cuda {
namespace {

// Replays cannot be counted: between them the thread looks for a while before it sleeps.
constexpr auto kLookOn = std::chrono::milliseconds(2);

}  // namespace

absl::Status CudaExecutor::StartOpen() {
  DeviceScope scope(device_);
  MOERT_ASSIGN_OR_RETURN(mail_, OpenMail::Create(&model_, extent_, w_.counters));
  int64_t record_bytes = 0;
  for (int l = 0; l < model_.num_layers(); ++l) {
    for (int e = 0; e < model_.layers[l].num_experts; ++e) {
      for (const int version : parts_.versions) {
        record_bytes = std::max(record_bytes, parts_.source->layout(l, e, version).bytes);
      }
    }
  }
  MOERT_RETURN_IF_ERROR(
      options_.records->Preallocate(options_.io_threads, RoundUp(record_bytes, kRecordAlignment)));
  eager_calls_.resize(kEager);
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&table_stream_, cudaStreamNonBlocking));
  MOERT_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  return absl::OkStatus();
}

absl::Status CudaExecutor::SyncTable(ExpertStore* store) {
  options_.records->GrowArena();
  changed_.clear();
  store->TakeChanges(&changed_);
  if (changed_.empty()) return absl::OkStatus();
  DeviceScope scope(device_);
  // A stream of our own: the host's may be gone by now.
  MOERT_RETURN_IF_ERROR(Enter(table_stream_));
  for (const ExpertKey key : changed_) {
    MOERT_RETURN_IF_ERROR(table_.Set(key.layer, key.expert, store->Latest(key), table_stream_));
  }
  MOERT_RETURN_IF_ERROR(table_.Flush(table_stream_));
  MOERT_RETURN_IF_ERROR(fence_->Pass(table_stream_));
  // Replays do not wait for the fence.
  if (captured_open_ && steps_ > 0) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(table_stream_));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::EnqueueOpen(const DeviceCall& call, const OpenContext& context,
                                       const RoutingOverride* rule) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  const bool capturing = Capturing(call.stream);
  uint32_t id = 0;
  if (capturing) {
    const std::lock_guard<std::mutex> lock(open_mu_);
    id = kEager + static_cast<uint32_t>(captured_calls_.size());
    captured_calls_.push_back({call, context, true, false});
    captured_ = true;
    captured_open_ = true;
  } else {
    if (opened_.load() - served_.load() >= kEager) MOERT_RETURN_IF_ERROR(DrainOpen());
    MOERT_RETURN_IF_ERROR(Enter(stream));
    const std::lock_guard<std::mutex> lock(open_mu_);
    id = static_cast<uint32_t>(opened_.load() % kEager);
    eager_calls_[id] = {call, context, false, rule != nullptr};
  }
  const bool cpu = CpuOffload(call);
  if (cpu) MOERT_RETURN_IF_ERROR(cpu_->BringRows(call.hidden, stream));
  // The rule goes by the table as the call in front of this one left it, which is what the store
  // holds when this one is served.
  MOERT_RETURN_IF_ERROR(RouteOnDevice(call, rule, mail_->rule(), context.next_gate));
  MOERT_RETURN_IF_ERROR(
      mail_->Publish(w_, call.layer, call.hidden.rows, context.next_gate, id, stream));
  if (!capturing) {
    ++opened_;
    WakeServer();
  }
  // From here on somebody waits for a release: an error must not leave out what takes it.
  absl::Status status = GroupAndPack(call);
  if (status.ok()) status = Products(call, AllExperts(call), MakeTilesArgs::kFirst);
  status.Update(mail_->WaitForRelease(stream));
  status.Update(mail_->ApplyChanges(w_.handles, stream));
  if (cpu && status.ok()) {
    status = ToStatus(
        LaunchPlaceOpenRows(cpu_->rows(), cpu_->slots(), mail_->cpu_rows(),
                            static_cast<int>(call.hidden.rows) * Spec(call).routing.top_k,
                            static_cast<int>(Spec(call).hidden), w_.out, extent_.hidden, stream),
        "placing rows");
  }
  if (status.ok()) status = Products(call, AllExperts(call), MakeTilesArgs::kRest);
  if (status.ok()) status = WeightedSum(call);
  if (!capturing) status.Update(fence_->Pass(stream));
  return status;
}

absl::Status CudaExecutor::EnqueueMark(cudaStream_t stream) {
  MOERT_RETURN_IF_ERROR(mail_->PublishMark(kMark, stream));
  ++opened_;
  WakeServer();
  return absl::OkStatus();
}

void CudaExecutor::WakeServer() {
  if (mail_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(open_mu_);
    if (!server_sleeps_) return;
  }
  open_changed_.notify_all();
}

bool CudaExecutor::NextOpen(OpenCall* open, RoutingResult* routing) {
  DeviceScope scope(device_);
  // Calls of this thread must not end a capture that another thread is making.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  while (true) {
    auto until = std::chrono::steady_clock::now() + kLookOn;
    while (mail_->rings() == rings_) {
      for (int i = 0; i < 16 && mail_->rings() == rings_; ++i) Pause();
      if (mail_->rings() != rings_ || AnyOpen() || (captured_open_ && steps_ > 0)) continue;
      if (std::chrono::steady_clock::now() < until) continue;
      std::unique_lock<std::mutex> lock(open_mu_);
      if (stopping_) return false;
      server_sleeps_ = true;
      open_changed_.wait(lock, [this] {
        return stopping_ || AnyOpen() || steps_ > 0 || mail_->rings() != rings_;
      });
      server_sleeps_ = false;
      if (stopping_ && mail_->rings() == rings_) return false;
      until = std::chrono::steady_clock::now() + kLookOn;
    }
    const uint32_t id = mail_->call_id(++rings_);  // marks may have come behind one another
    if (id == kMark) {
      ++served_;
      open_changed_.notify_all();
      continue;
    }
    {
      const std::lock_guard<std::mutex> lock(open_mu_);
      *open = id < kEager ? eager_calls_[id] : captured_calls_[id - kEager];
    }
    mail_->Read(open->call.layer, open->call.hidden.rows, open->context.next_gate, routing);
    if (open->ruled) returned_.ReadRule(mail_->rule(), routing);
    if (CpuOffload(open->call)) cpu_->TakeRows(open->call.hidden);
    fence_->SetQuiet(true);
    return true;
  }
}

void CudaExecutor::ReleaseOpen(const OpenCall& open, ExpertStore* store) {
  changed_.clear();
  store->TakeChanges(&changed_);
  int count = 0;
  for (const ExpertKey key : changed_) {
    count += table_.Change(key, store->Latest(key), mail_->changes() + count);
  }
  fence_->SetQuiet(false);
  mail_->Release(count, cpu_ == nullptr ? 0 : cpu_->num_rows());
  if (cpu_ != nullptr) cpu_->Forget();
  if (open.captured) return;
  ++served_;
  { const std::lock_guard<std::mutex> lock(open_mu_); }
  open_changed_.notify_all();
}

absl::Status CudaExecutor::DrainOpen() {
  if (mail_ == nullptr) return absl::OkStatus();
  if (captured_open_ && steps_ > 0) {
    DeviceScope scope(device_);
    if (Capturing(step_stream_)) {
      return absl::FailedPreconditionError(
          "the stream is being captured: calls that wait for the device are not legal");
    }
    MOERT_RETURN_IF_ERROR(EnqueueMark(step_stream_));
  }
  if (!AnyOpen()) return absl::OkStatus();
  std::unique_lock<std::mutex> lock(open_mu_);
  open_changed_.wait(lock, [this] { return !AnyOpen(); });
  return absl::OkStatus();
}

void CudaExecutor::StopOpen() {
  if (mail_ == nullptr) return;
  DeviceScope scope(device_);
  cudaDeviceSynchronize();  // calls that still wait are released by the other thread meanwhile
  {
    const std::lock_guard<std::mutex> lock(open_mu_);
    stopping_ = true;
  }
  open_changed_.notify_all();
}

}  // namespace moert::cuda
