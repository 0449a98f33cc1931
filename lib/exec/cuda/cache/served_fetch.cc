// ServedMisses: calls in which the host multiplies (Engine::Fetch).
#include "base/status_macros.h"
#include "exec/cuda/cache/served_misses.h"

namespace moert::cuda {

bool ServedMisses::Predicts(const HostCall& host) const {
  return host.hidden.data != nullptr && host.tokens == 1 && Predicts(host.layer, host.tokens);
}

absl::Status ServedMisses::PredictNext(const HostCall& host, cudaStream_t stream) {
  const LayerOnDevice& next = constants_->layer(host.layer + 1);
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGateLogits(host.hidden, next.gate, next.routing.num_experts, host.next_scores, stream));
  Call call;
  call.tokens = host.tokens;
  call.next_scores = host.next_scores;
  return MOERT_CUDA_STATUS(LaunchPredictRecords(PredictionOf(host.layer + 1, call), stream));
}

ServeMissesArgs ServedMisses::ArgsOf(const HostCall& host) const {
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
  args.slots_a_byte = 1.0 / static_cast<double>(host.region.stride);
  if (host.tokens != 1) args.wanted = nullptr;  // needs groups, which such a call does not have
  return args;
}

absl::Status ServedMisses::Fetch(const HostCall& host, cudaStream_t stream) {
  if (host.capturing) return FetchCaptured(host, stream);
  const bool predicts = Predicts(host);
  const auto layer = static_cast<size_t>(host.layer);
  // The prediction for this layer has to be complete.
  if (rules_.prefetch()) MOERT_RETURN_IF_ERROR(beside_.JoinPrediction(stream));
  // From here on the tables list records that have yet to be brought.
  in_doubt_ = true;
  unfinished_[layer] = 1;
  if (predicts) {
    unfinished_[layer + 1] = 1;
    MOERT_RETURN_IF_ERROR(beside_.Follow(stream));
    MOERT_RETURN_IF_ERROR(PredictNext(host, beside_.get()));
    MOERT_RETURN_IF_ERROR(beside_.EndPrediction());
  }
  const ServeMissesArgs args = ArgsOf(host);
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

// The prediction runs beside the host's products until Leave. The prefetch is a node that no stream
// waits for, so it may run beside all of the host's kernels up to the next call's copies.
absl::Status ServedMisses::FetchCaptured(const HostCall& host, cudaStream_t stream) {
  LayerPrefetch* const list = on_device_.table.prefetch + host.layer + 1;
  const bool predicts = Predicts(host);
  if (predicts) {
    MOERT_RETURN_IF_ERROR(branch_.ForkPrediction(stream, list));
    MOERT_RETURN_IF_ERROR(PredictNext(host, branch_.predictions()));
  }
  const ServeMissesArgs args = ArgsOf(host);
  MOERT_CUDA_RETURN_IF_ERROR(LaunchServeMisses(args, stream));
  MOERT_RETURN_IF_ERROR(branch_.ForkCopies(stream));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchCopyRecords(args.copies, args.num_copies, branch_.copies()));
  if (predicts) MOERT_RETURN_IF_ERROR(branch_.Prefetch(list));
  return branch_.JoinCopies(stream);
}

absl::Status ServedMisses::AwaitPrefetches(cudaStream_t stream) {
  MOERT_RETURN_IF_ERROR(beside_.JoinPrediction(stream));
  return beside_.JoinCopies(stream);
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
