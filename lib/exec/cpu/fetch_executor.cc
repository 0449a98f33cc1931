#include "exec/cpu/fetch_executor.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/rows.h"
#include "base/status_macros.h"

namespace moert {
namespace {

bool HasGates(const MoeModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const MoeLayerSpec& layer) { return !layer.routing.external(); });
}

}  // namespace

absl::Status FetchExecutor::CopyRecords(const ExecutorCall& call, const VersionedStore& store,
                                        absl::Span<const int32_t> experts, std::byte* to,
                                        int64_t stride) {
  const ExpertSource& source = *parts_.source;
  const int version = parts_.versions[0];
  for (const int32_t e : experts) {
    const std::byte* there = store.Resolve({call.layer, e}, call.epoch).record;
    const auto bytes = static_cast<size_t>(source.layout(call.layer, e, version).bytes);
    std::byte* const place = to + e * stride;
    if (there != nullptr) {
      std::memcpy(place, there, bytes);
    } else {
      MOERT_RETURN_IF_ERROR(source.ReadRecord(call.layer, e, version, {place, bytes}));
    }
  }
  return absl::OkStatus();
}

bool IsOpaque(const ExpertSource& source) { return source.layout(0, 0, 0).opaque(); }

int64_t FetchWorkspaceBytes(const ExecutorSize& size, int io_threads) {
  const MoeModelSpec& model = size.source->model();
  const int64_t tokens = size.max_tokens;
  int64_t bytes = 0;
  for (const MoeLayerSpec& layer : model.layers) {
    // Ids, weights and two groupings of each pair; slots; scores and logits of this and the next
    // layer.
    bytes = std::max(bytes, tokens * layer.routing.top_k * 16 + tokens * 8 +
                                int64_t{layer.num_experts} * 4 +
                                tokens * int64_t{model.max_experts()} * 16);
  }
  if (HasGates(model)) bytes += tokens * model.layers[0].hidden * 4;
  return bytes + io_threads * size.source->scratch_bytes();
}

FetchExecutor::FetchExecutor(const ExecutorParts& parts) : parts_(parts) {
  const MoeModelSpec& model = parts.source->model();
  if (HasGates(model)) x_ = AlignedArray<float>(parts.max_tokens * model.layers[0].hidden);
}

absl::Status FetchExecutor::Check(const ExecutorCall& /*call*/, const MoeLayerSpec& /*layer*/,
                                  bool /*routed*/) const {
  return FailedPrecondition("the records of {} are opaque, their product is the host's: use Fetch",
                            parts_.source->name());
}

absl::Status FetchExecutor::Route(const ExecutorCall& call, const RoutingRequest& /*request*/,
                                  RoutingResult* /*routing*/) {
  return Check(call, {}, false);
}

absl::Status FetchExecutor::SetRouting(const ExecutorCall& call, const RoutingResult&) {
  // Without gates nobody asks for them.
  if (call.hidden.data != nullptr && x_.size() > 0) WidenRows(call.hidden, x_.data());
  return absl::OkStatus();
}

absl::Status FetchExecutor::Multiply(const ExecutorCall& call, const RoutingResult&,
                                     absl::Span<const ReadyExpert>, bool) {
  return Check(call, {}, false);
}

absl::Status FetchExecutor::Combine(const ExecutorCall& call, const RoutingResult&) {
  return Check(call, {}, false);
}

absl::Status FetchExecutor::ScoreNext(const ExecutorCall& call, bool /*filled*/,
                                      std::vector<float>* scores) {
  return parts_.router->Score(call.layer + 1, x_.data(), call.tokens, scores);
}

}  // namespace moert
