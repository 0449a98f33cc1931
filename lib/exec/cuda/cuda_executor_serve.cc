// CudaExecutor: misses of captured calls, and the ownership of the blocks.
#include <utility>

#include "base/status_macros.h"
#include "exec/cuda/cuda_executor_impl.h"

namespace moert::cuda {

absl::Status CudaExecutor::LoadRule() {
  cudaStream_t stream = nullptr;
  MOERT_RETURN_IF_ERROR(MakeUrgentStream(&stream));
  absl::Status status = DeviceRule::LoadAccounts(w_, stream);
  for (int l = 0; parts_.served.ruled && l < model_.num_layers() && status.ok(); ++l) {
    status = DeviceRule::Load(w_, on_device_.layer(l).routing, stream);
  }
  const int waited = static_cast<int>(cudaStreamSynchronize(stream));
  if (waited != 0) status.Update(ToStatus(waited, "cudaStreamSynchronize"));
  cudaStreamDestroy(stream);
  return status;
}

absl::Status CudaExecutor::ServeMisses(const VersionedStore& store) {
  const ServedRules& rules = parts_.served;
  const size_t versions = rules.low_patience > 0 ? 2 : 1;
  if (parts_.versions.size() != versions || !store.pool(0).alike()) {
    return absl::FailedPreconditionError("its experts are served in several versions or sizes");
  }
  if (options_.paced) return absl::FailedPreconditionError("its link is paced (link_gbps)");
  for (const MoeLayerSpec& layer : model_.layers) {
    if (!rules.ruled || DeviceRule::Serves(layer)) continue;
    return absl::FailedPreconditionError(
        "its router has scales or token ids of its own: the host substitutes its experts");
  }
  DeviceScope scope(device_);
  const int version = parts_.versions[0];
  const int low = rules.low() ? parts_.versions[1] : -1;
  MOERT_RETURN_IF_ERROR(KeepRecords(options_.records, version, rules.brings_low() ? low : -1,
                                    rules.cpu(), parts_.pool));
  auto served = std::make_unique<ServedMisses>();
  MOERT_RETURN_IF_ERROR(served->Init(&model_, &on_device_, options_.records, version, rules,
                                     w_.served, table_.rows(0) + model_.layers[0].num_experts));
  if (rules.low()) MOERT_RETURN_IF_ERROR(served->PlaceLow(store, low));
  std::unique_ptr<ServedCpu> cpu;
  if (rules.cpu()) {
    MOERT_ASSIGN_OR_RETURN(
        cpu, ServedCpu::Create({&model_, options_.records, version, parts_.gemm, parts_.pool,
                                parts_.profile, parts_.max_tokens}));
    MOERT_RETURN_IF_ERROR(served->ShareMisses(cpu->memory()));
  }
  if (rules.by_request()) MOERT_RETURN_IF_ERROR(LoadRule());
  if (cpu != nullptr) cpu_->Attach(cpu.get());
  served_cpu_ = std::move(cpu);
  served_ = std::move(served);
  return absl::OkStatus();
}

absl::Status CudaExecutor::TakeBack(VersionedStore* store) {
  if (!lent()) return absl::OkStatus();
  DeviceScope scope(device_);
  for (cudaStream_t stream : open_streams_) {
    MOERT_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
    if (capturing) {
      return absl::FailedPreconditionError(
          "a step's stream is being captured: its experts cannot be used meanwhile");
    }
  }
  ++host_syncs_;
  MOERT_CUDA_RETURN_IF_ERROR(fence_->Await());  // steps that have ended
  for (cudaStream_t stream : open_streams_) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(rows_arrived_, stream));
    MOERT_CUDA_RETURN_IF_ERROR(AwaitEvent(rows_arrived_));
  }
  return served_->TakeBack(store);
}

bool CudaExecutor::TakeServed(ServedCount* added) {
  if (served_ == nullptr) return false;
  DeviceScope scope(device_);
  if (!served_->TakeCounts(added)) return false;
  if (served_cpu_ == nullptr) return true;
  served_cpu_->TakeTimes(added);
  added->cpu_read_bytes = served_cpu_->records()->TakeReadBytes();
  lost_ = lost_ || added->cpu_lost > 0;
  return true;
}

absl::Status CudaExecutor::TakeCpuFailure() {
  if (served_cpu_ == nullptr) return absl::OkStatus();
  const absl::Status failure = served_cpu_->TakeOwedFailure();
  if (!std::exchange(lost_, false) || !failure.ok()) return failure;
  return absl::DeadlineExceededError(
      "the CPU did not read and multiply records beside pinned memory within ten seconds: rows "
      "of a captured layer call are lost");
}

absl::Status CudaExecutor::PrepareServed(cudaStream_t stream) {
  if (served_cpu_ != nullptr) {
    cpu_->Watch();
    cpu_costs_.read = served_cpu_->records()->read_ns();
    MOERT_RETURN_IF_ERROR(served_->SetCosts(cpu_costs_, stream));
  }
  return open_streams_.empty() ? served_->MoveRecords(stream) : absl::OkStatus();
}

}  // namespace moert::cuda
