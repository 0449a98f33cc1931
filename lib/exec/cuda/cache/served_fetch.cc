// ServedMisses: calls in which the host multiplies (Engine::Fetch).
#include "base/status_macros.h"
#include "exec/cuda/cache/served_misses.h"

namespace moert::cuda {

absl::Status ServedMisses::PredictBeside(const HostCall& host, cudaStream_t stream) {
  MOERT_RETURN_IF_ERROR(beside_.Follow(stream));
  const LayerOnDevice& next = constants_->layer(host.layer + 1);
  MOERT_CUDA_RETURN_IF_ERROR(LaunchGateLogits(host.hidden, next.gate, next.routing.num_experts,
                                              host.next_scores, beside_.get()));
  Call call;
  call.tokens = host.tokens;
  call.next_scores = host.next_scores;
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchPredictRecords(PredictionOf(host.layer + 1, call), beside_.get()));
  return beside_.EndPrediction();
}

absl::Status ServedMisses::Fetch(const HostCall& host, cudaStream_t stream) {
  const bool predicts =
      host.hidden.data != nullptr && host.tokens == 1 && Predicts(host.layer, host.tokens);
  const auto layer = static_cast<size_t>(host.layer);
  // The prediction for this layer has to be complete.
  if (rules_.prefetch()) MOERT_RETURN_IF_ERROR(beside_.JoinPrediction(stream));
  // From here on the tables list records that have yet to be brought.
  in_doubt_ = true;
  unfinished_[layer] = 1;
  if (predicts) {
    unfinished_[layer + 1] = 1;
    MOERT_RETURN_IF_ERROR(PredictBeside(host, stream));
  }
  Call call;
  call.layer = host.layer;
  call.tokens = host.tokens;
  call.x = host.cpu_rows;
  call.weights = host.given.weights;
  ServeMissesArgs args = Args(call);
  args.cpu = ShareOf(call);
  args.any_slot = host.given.any_slot ? 1 : 0;
  args.ids = host.given.ids;
  args.pairs = static_cast<int32_t>(host.given.pairs);
  args.found = host.given.used_ids;
  args.table = host.table;
  args.base = reinterpret_cast<const uint8_t*>(host.region.base);
  args.stride = host.region.stride;
  if (host.tokens != 1) args.wanted = nullptr;  // needs groups, which such a call does not have
  MOERT_CUDA_RETURN_IF_ERROR(LaunchServeMisses(args, stream));
  // A prefetched record that this call wants may still be on its way.
  if (rules_.prefetch()) MOERT_RETURN_IF_ERROR(beside_.JoinCopies(stream));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchCopyRecords(args.copies, args.num_copies, stream));
  unfinished_[layer] = 0;
  if (predicts) {
    MOERT_RETURN_IF_ERROR(beside_.Follow(stream));  // the call's own misses come first
    MOERT_CUDA_RETURN_IF_ERROR(
        LaunchCopyPrefetched(on_device_.table.prefetch + host.layer + 1, beside_.get()));
    MOERT_RETURN_IF_ERROR(beside_.EndCopies());
    unfinished_[layer + 1] = 0;
  }
  in_doubt_ = false;
  return absl::OkStatus();
}

absl::Status ServedMisses::AwaitRows(int layer, const MutableMatrixView& out,
                                     cudaStream_t stream) const {
  AwaitCpuArgs args;
  args.call = on_device_.cpu.call;
  args.owed = 1;
  args.memory = job_;
  args.slots = on_device_.cpu.slots;
  args.out = static_cast<float*>(out.data);
  args.out_stride = out.row_stride;
  args.cols = static_cast<int32_t>(out.cols);
  args.tally = on_device_.tally + layer;
  return MOERT_CUDA_STATUS(LaunchAwaitCpu(args, stream));
}

}  // namespace moert::cuda
