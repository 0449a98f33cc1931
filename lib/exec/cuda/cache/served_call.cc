// ServedMisses: what a captured call enqueues: its decision, its copies, and the prediction for the
// next layer.
#include <optional>

#include "base/status_macros.h"
#include "exec/cuda/cache/served_misses.h"

namespace moert::cuda {

ServeMissesArgs ServedMisses::DecisionOf(const Call& call) const {
  ServeMissesArgs args = Args(call);
  args.lenders = LendersOf(call.layer);
  args.cpu = ShareOf(call);
  args.answers_low = call.low.accounts != nullptr ? 1 : 0;
  if (call.tiles != nullptr) {
    args.makes_tiles = 1;
    args.tiles = *call.tiles;
    args.late_table = on_device_.late_tiles;
  }
  return args;
}

std::optional<PredictArgs> ServedMisses::PredictionBeside(const Call& call,
                                                          const ServeMissesArgs& args) const {
  if (call.next_scores == nullptr || call.route == nullptr) return std::nullopt;
  const PredictArgs prediction = PredictionOf(call.layer + 1, call);
  // Only a call's copies are ordered behind the last prefetch, its decision is not: it must not
  // write a list that this prefetch still reads.
  if (branch_.Reads(prediction.prefetch)) return std::nullopt;
  if (!PredictsBeside(*call.route, args, prediction)) return std::nullopt;
  return prediction;
}

int ServedMisses::CtasBeside(const Call& call) const {
  const bool apart = rules_.prefetch() && !PredictionBeside(call, DecisionOf(call));
  return kCopyCtas + (apart ? 2 : 0);
}

absl::Status ServedMisses::Begin(const Call& call, cudaStream_t stream) {
  const ServeMissesArgs args = DecisionOf(call);
  const std::optional<PredictArgs> prediction = PredictionBeside(call, args);
  const PredictArgs* const next = prediction ? &*prediction : nullptr;
  if (next == nullptr && call.next_scores != nullptr) MOERT_RETURN_IF_ERROR(Predict(call, stream));
  const auto decide = [&] {
    if (call.route == nullptr) return LaunchServeMisses(args, stream);
    return call.rule == nullptr ? LaunchRouteAndServe(*call.route, args, stream, next)
                                : LaunchRuleAndServe(*call.route, *call.rule, args, stream, next);
  };
  MOERT_CUDA_RETURN_IF_ERROR(decide());
  MOERT_RETURN_IF_ERROR(branch_.ForkCopies(stream));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchCopyRecords(args.copies, args.num_copies, branch_.copies()));
  if (call.next_scores == nullptr) return absl::OkStatus();
  return branch_.Prefetch(on_device_.table.prefetch + call.layer + 1);
}

absl::Status ServedMisses::Predict(const Call& call, cudaStream_t stream) {
  const PredictArgs prediction = PredictionOf(call.layer + 1, call);
  MOERT_RETURN_IF_ERROR(branch_.ForkPrediction(stream, prediction.prefetch));
  return MOERT_CUDA_STATUS(LaunchPredictRecords(prediction, branch_.predictions()));
}

}  // namespace moert::cuda
