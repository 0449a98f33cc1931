#include "exec/cuda/open_mail.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/status_macros.h"
#include "exec/cuda/routing_return.h"
#include "fmt/format.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/rows.h"

namespace moert::cuda {
namespace {

using WaitValue = decltype(&cuStreamWaitValue32);

}  // namespace

absl::StatusOr<std::unique_ptr<OpenMail>> OpenMail::Create(const MoeModelSpec* model,
                                                           const Extent& extent,
                                                           uint32_t* counters) {
  std::unique_ptr<OpenMail> mail(
      new OpenMail(model, std::min(extent.tokens, kMaxTokens), counters));
  MOERT_RETURN_IF_ERROR(mail->Init(extent));
  return mail;
}

absl::Status OpenMail::Init(const Extent& extent) {
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  MOERT_CUDA_RETURN_IF_ERROR(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &wait_value_,
                                                              12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || wait_value_ == nullptr) {
    return absl::UnavailableError("CUDA: this driver has no stream memory operations");
  }
  MOERT_ASSIGN_OR_RETURN(words_memory_, Buffer::Pinned(sizeof(Words)));
  std::memset(words(), 0, sizeof(Words));
  MOERT_ASSIGN_OR_RETURN(mirror_memory_, Buffer::Pinned(RoutingMirror::Bytes(extent, max_tokens_)));
  const int64_t pairs = extent.pairs / extent.tokens * max_tokens_;
  Carver count;
  RuleMirror::Carve(pairs, &count);
  MOERT_ASSIGN_OR_RETURN(rule_memory_, Buffer::Pinned(count.used()));
  Carver carver(rule_memory_.data());
  rule_ = RuleMirror::Carve(pairs, &carver);
  MOERT_ASSIGN_OR_RETURN(change_memory_, Buffer::Pinned(HandleCount(*model_) *
                                                        static_cast<int64_t>(sizeof(TableChange))));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemset(counters_, 0, kCounters * sizeof(uint32_t)));
  MOERT_CUDA_RETURN_IF_ERROR(LoadRouteKernels());
  MOERT_CUDA_RETURN_IF_ERROR(LoadExpertCacheKernels());
  MOERT_CUDA_RETURN_IF_ERROR(LoadRowKernels());
  MOERT_CUDA_RETURN_IF_ERROR(LoadOpenCallKernels());
  // Tried once where it cannot hang: what it waits for is there.
  words()->release = 1;
  cudaStream_t stream = nullptr;
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  absl::Status status = WaitForRelease(stream);
  if (status.ok()) status = ToStatus(cudaStreamSynchronize(stream), "a wait of a stream");
  cudaStreamDestroy(stream);
  words()->release = 0;
  return status;
}

absl::Status OpenMail::PublishMark(uint32_t call_id, cudaStream_t stream) {
  MOERT_CUDA_RETURN_IF_ERROR(LaunchPublish(Args(call_id), stream));
  return absl::OkStatus();
}

PublishArgs OpenMail::Args(uint32_t call_id) const {
  PublishArgs args;
  args.arrived = counters_;
  args.sequence = counters_ + 1;
  args.calls = words()->calls;
  args.doorbell = &words()->doorbell;
  args.call_id = call_id;
  return args;
}

absl::Status OpenMail::Publish(const Workspace& w, int layer, int64_t tokens, bool next_gate,
                               uint32_t call_id, cudaStream_t stream) {
  const RoutingMirror mirror(*model_, layer, tokens, next_gate, mirror_memory_.data());
  PublishArgs args = Args(call_id);
  int count = 0;
  const auto piece = [&](const void* from, void* to, int64_t words) {
    args.piece[count++] = {static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to),
                           static_cast<int32_t>(words)};
  };
  piece(w.ids, mirror.ids, mirror.pairs);
  piece(w.weights, mirror.weights, mirror.pairs);
  piece(w.scores, mirror.scores, mirror.num_scores);
  piece(w.next_scores, mirror.next_scores, mirror.num_next_scores);
  MOERT_CUDA_RETURN_IF_ERROR(LaunchPublish(args, stream));
  return absl::OkStatus();
}

absl::Status OpenMail::WaitForRelease(cudaStream_t stream) const {
  const CUresult error = reinterpret_cast<WaitValue>(wait_value_)(
      stream, reinterpret_cast<CUdeviceptr>(&words()->release), 1, CU_STREAM_WAIT_VALUE_EQ);
  if (error == CUDA_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("CUDA: cuStreamWaitValue32 failed with error {}", static_cast<int>(error)));
}

absl::Status OpenMail::ApplyChanges(ExpertHandle* table, cudaStream_t stream) const {
  ApplyArgs args;
  args.table = table;
  args.changes = changes();
  args.counts = &words()->counts;
  args.cpu_rows = reinterpret_cast<int32_t*>(counters_ + 2);
  args.release = &words()->release;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchApply(args, stream));
  return absl::OkStatus();
}

void OpenMail::Read(int layer, int64_t tokens, bool next_gate, RoutingResult* routing) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  RoutingMirror(*model_, layer, tokens, next_gate, mirror_memory_.data())
      .Read(*model_, layer, tokens, routing);
}

void OpenMail::Release(int num_changes, int cpu_rows) {
  words()->counts = {num_changes, cpu_rows};
  std::atomic_thread_fence(std::memory_order_seq_cst);
  *static_cast<volatile uint32_t*>(&words()->release) = 1;
}

}  // namespace moert::cuda
